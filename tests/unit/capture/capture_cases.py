"""What the tests of the reader share: the records of a small file, and a whole reading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.capture.account import Account, account
from sigmatrace.capture.index import FileIndex, index_file
from sigmatrace.capture.merge import ProcessBase, merge
from sigmatrace.capture.objects import OBJECT_TABLES, WITHOUT, object_rows
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.capture.read import ReadLoss, plan, read
from sigmatrace.capture.tables import together
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import EVENT_NAMES
from sigmatrace.testing.write import records
from sigmatrace.trace_format import Dir, Kind, Layer, MarkKind, Op, Schema

NAME = "host-1-1000000000000000000.msgpack"
UNIQUE = {
    Schema.OP: "t_tsc",
    Schema.COMPLETION: "t_tsc",
    Schema.MARK: "t_tsc",
    Schema.TARGET: "raddr",
    Schema.AGGREGATE: "size_bytes",
}
"""By schema, a column that tells the records of the small file apart."""


def small_records() -> list[tuple[Schema, np.ndarray]]:
    """Return the event chunks of the small file; the numbers of ``UNIQUE`` never repeat."""
    chunks = []
    for at in (100, 200):
        ops = records(Schema.OP, 5, t_tsc=np.arange(5) + at, op=Op.SEND, call=1, size_bytes=7)
        ops["channel"] = [0, 1, 2, 1, 0]
        ops["ordinal"] = np.arange(5) + at
        chunks.append((Schema.OP, ops))
    done = records(Schema.COMPLETION, 3, t_tsc=np.arange(3) + 300, op=Op.SEND, status=[0, -5, 0])
    marks = records(Schema.MARK, 2, t_tsc=[400, 401], name=9, kind=[MarkKind.BEGIN, MarkKind.END])
    targets = records(Schema.TARGET, 3, raddr=[500, 501, 502], rkey=2**64 - 1, channel=2)
    sums = records(Schema.AGGREGATE, 4, size_bytes=[600, 0, 601, 0], count=[3, 0, 1, 0], op=1)
    return [
        *chunks,
        (Schema.COMPLETION, done),
        (Schema.MARK, marks),
        (Schema.TARGET, targets),
        (Schema.AGGREGATE, sums),
    ]


def small_channels() -> np.ndarray:
    return records(
        Schema.CHANNEL,
        3,
        id=[0, 1, 2],
        object=1,
        peer=[4, 5, 6],
        kind=Kind.MSG,
        dir=[Dir.OUT, Dir.OUT, Dir.IN],
        layer=Layer.OFI,
    )


@dataclass(frozen=True)
class Loaded:
    """Everything that the reader says of a folder."""

    indexes: list[FileIndex]
    run: Run
    bases: list[ProcessBase]
    parts: list[Partition]
    loss: ReadLoss
    account: Account

    def column(self, table: str, name: str) -> np.ndarray:
        return np.concatenate([part.column(table, name) for part in self.parts])

    def seen(self) -> dict[Schema, Counter[int]]:
        """Return what was read of each schema, by the column ``UNIQUE``."""
        if not self.parts:
            return {schema: Counter() for schema in UNIQUE}
        return {
            schema: Counter(self.column(EVENT_NAMES[schema], name).tolist())
            for schema, name in UNIQUE.items()
        }


def load_folder(folder: Path, target_bytes: int = 1 << 20, run_id: str | None = None) -> Loaded:
    """Run the whole reader on a folder."""
    indexes = [index_file(path) for path in find_rank_files(folder)]
    run, bases = merge(indexes, run_id)
    parts, loss = [], ReadLoss()
    for spec in plan(indexes, bases, target_bytes):
        part, one = read(spec)
        parts.append(part)
        loss = loss + one
    return Loaded(indexes, run, bases, parts, loss, account(indexes, bases, loss))


def object_tables(
    objects: dict[int, dict[str, Any]], channels: np.ndarray, host: str
) -> dict[str, pa.Table]:
    """Return all tables of objects of one process, empty ones too."""
    found = object_rows(objects, channels, host)
    assert found.keys() <= set(OBJECT_TABLES)
    return {name: together(name, [found.get(name, [])], WITHOUT) for name in OBJECT_TABLES}


def check_balance(loaded: Loaded) -> None:
    """Check that bytes and records add up in the account."""
    for file in loaded.account.files:
        assert file.size_bytes == file.whole + file.damaged + file.cut + file.foreign
        assert min(file.whole, file.damaged, file.cut, file.foreign) >= 0
    for total in loaded.account.schemas.values():
        found = total.read + total.damaged + total.bad_channel + total.unused + total.missing
        assert total.written + total.recovered + total.surplus == found
        open_ = total.read_open + total.damaged_open + total.bad_channel_open + total.unused_open
        assert total.found == found - total.missing + open_
