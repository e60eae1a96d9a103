"""What the Perfetto exporter reads."""

from __future__ import annotations

from sigmatrace.export.perfetto import PerfettoExporter
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES, STAGE_TABLES
from tests.perfetto_inputs import event_columns, partition, run, send


def test_declared_columns_exist_with_these_types():
    known = {**INDEX_TABLES, **STAGE_TABLES, **{name: event_columns(name) for name in EVENT_TABLES}}
    for name, columns in PerfettoExporter.requires.items():
        assert columns.items() <= known[name].items()


def test_read_only_columns_are_taken_as_they_are(tmp_path):
    part = partition(0, [send(1, 2)])
    assert not part.column("ops", "t_ns").flags.writeable
    of = run()
    assert PerfettoExporter().prepared(of).write(part, of, tmp_path).counts["slices"] == 1
