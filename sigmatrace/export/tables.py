"""Tables for people: labels of processes beside their numbers, words for codes."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import pyarrow as pa

from sigmatrace.export.mlx5_names import WqeCompletion, WqeFence, WqeOpcode
from sigmatrace.export.verbs_names import WcStatus
from sigmatrace.partition import Run, column
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES, Fate, RegionFate
from sigmatrace.trace_format import (
    Dir,
    DoorbellFlag,
    Kind,
    Layer,
    MarkKind,
    Op,
    Queue,
    WcOpcode,
    WqeKind,
    WrOpcode,
)

WORDS: dict[str, type[IntEnum]] = {
    "dir": Dir, "fate": Fate, "kind": Kind, "layer": Layer, "op": Op, "queue": Queue,
}  # fmt: skip
"""What the codes of a column mean, where ``OF_TABLE`` does not say otherwise."""
OF_TABLE: dict[str, type[IntEnum]] = {
    "marks.kind": MarkKind, "requests.owner": RegionFate, "wqes.kind": WqeKind,
    "wqes.decoded": WqeKind, "requests.opcode": WrOpcode, "cqes.opcode": WcOpcode,
    "cqes.status": WcStatus, "latencies.opcode": WcOpcode, "latencies.status": WcStatus,
    "wqes.opcode": WqeOpcode, "wqes.fence": WqeFence, "wqes.ce": WqeCompletion,
}  # fmt: skip
"""What they mean in one table; columns of these names are something else in others."""
FLAGS: dict[str, type[IntFlag]] = {"doorbells.flags": DoorbellFlag}
"""What the bits of a column mean."""

LABELS = {"src_proc": "src", "dst_proc": "dst", "peer_proc": "peer", "proc": "label"}
"""Name of the column with labels of processes, by that with their numbers."""


def named(run: Run, name: str) -> pa.Table:
    """Return a table of the run with readable columns.

    Columns ``src``, ``dst``, ``peer`` and ``label`` with labels of processes ("" unknown) are added
    to ``src_proc``, ``dst_proc``, ``peer_proc`` and ``proc``; codes of ``WORDS`` and ``OF_TABLE``
    become words (in tables of this package; what a column of that name means in another stage's
    table is not known).
    """
    table = run.tables[name]
    labels = run.tables["processes"].column("label").to_pylist()
    for at, field in enumerate(table.schema):
        if not pa.types.is_integer(field.type) or table.column(field.name).null_count:
            continue
        values = column(table, field.name)
        key = LABELS.get(field.name)
        meaning = OF_TABLE.get(f"{name}.{field.name}", WORDS.get(field.name))
        if key is not None and key not in table.column_names:
            known = (values >= 0) & (values < len(labels))
            place = np.where(known, values, len(labels)).astype(np.int64)
            table = table.append_column(key, pa.array([*labels, ""], pa.string()).take(place))
        elif meaning is not None and (name in STAGE_TABLES or name in INDEX_TABLES):
            table = table.set_column(at, field.name, _words(values, meaning))
    return table


def codes() -> pa.Table:
    """Return what codes (and bits) mean: ``field`` (name of a column), ``code``, ``name``."""
    known: dict[str, type[IntEnum] | type[IntFlag]] = {**WORDS, **OF_TABLE, **FLAGS}
    rows = [
        {"field": field, "code": int(one), "name": str(one.name).lower()}
        for field, words in known.items()
        for one in words
    ]
    types = {"field": pa.string(), "code": pa.uint8(), "name": pa.string()}
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def results(run: Run) -> list[str]:
    """Return the names of the tables that stages have made."""
    return [name for name in run.tables if name not in INDEX_TABLES]


def _words(values: np.ndarray, meaning: type[IntEnum]) -> pa.Array:
    """Return words for codes; a code without a meaning is shown as its number."""
    known = {int(one): one.name.lower() for one in meaning}
    found, place = np.unique(values, return_inverse=True)
    words = [known.get(value, str(value)) for value in found.tolist()]
    return pa.array(words, pa.string()).take(pa.array(place))
