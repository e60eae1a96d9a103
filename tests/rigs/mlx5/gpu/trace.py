"""Rank files as numpy arrays, written from docs/format.md: fast enough for millions of records.

Checksums are not looked at, and ring files are not read: a file must have an end item.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from tests.native.plain_reader import RECORD_FORMATS

Records = NDArray[np.void]
_TYPES = {"Q": "<u8", "I": "<u4", "i": "<i4", "B": "u1", "d": "<f8"}
_LARGEST_ITEM = 1 << 30


def dtype_of(schema: int) -> np.dtype[np.void]:
    """A record's numpy dtype, of the same bytes as its struct format."""
    form, names = RECORD_FORMATS[schema]
    fields, left = [], names.split()
    for count, code in re.findall(r"(\d*)([A-Za-z])", form):
        if code == "x":
            fields.append(("pad", f"V{count or 1}"))
        else:
            fields += [(left.pop(0), _TYPES[code]) for _ in range(int(count or 1))]
    return np.dtype(fields)


@dataclass
class Rank:
    """What one process left behind.

    Attributes:
        pid: Of the process.
        tsc_hz: Ticks a second.
        chunks: Raw records by schema, in the order of the file.
        objects: All object items.
        end: The end item, or None.
        file_bytes: Size of the file.
    """

    pid: int
    tsc_hz: int
    chunks: dict[int, list[bytes]]
    objects: list[dict[str, Any]]
    end: dict[str, Any] | None
    file_bytes: int

    def records(self, schema: int) -> Records:
        """All records of a schema."""
        data = b"".join(self.chunks.get(schema, []))
        return np.frombuffer(data, dtype_of(schema))

    def objects_of(self, kind: str) -> dict[int, dict[str, Any]]:
        """The last state of each object of a type, by id."""
        found: dict[int, dict[str, Any]] = {}
        for item in self.objects:
            if item["type"] == kind:
                found.setdefault(item["id"], {}).update(item)
        return found

    @property
    def lost(self) -> Counter[str]:
        """What the file says that is not in it."""
        if self.end is None:
            return Counter({"no end item": 1})
        lost = Counter(self.end["lost"])
        for schema, totals in self.end["schemas"].items():
            lost[f"dropped records of schema {schema}"] += totals["dropped"]
        return +lost


def read(path: Path) -> Rank:
    """Reads a rank file.

    Raises:
        ValueError: It is none.
    """
    rank = Rank(0, 0, {}, [], None, path.stat().st_size)
    with path.open("rb") as file:
        for magic, _, kind, _, body in msgpack.Unpacker(file, max_buffer_size=_LARGEST_ITEM):
            if magic != "STRC":
                raise ValueError(f"{path}: no item of a rank file")
            if kind == 0:
                rank.pid, rank.tsc_hz = body["pid"], body["tsc_hz"]
            elif kind == 1:
                rank.chunks.setdefault(body["schema"], []).append(body["data"])
            elif kind == 2:
                rank.objects.append(body)
            elif kind == 4:
                rank.end = body
    return rank


def read_all(folder: Path) -> dict[int, Rank]:
    """The rank files of a folder, by pid."""
    return {rank.pid: rank for rank in map(read, folder.glob("*.msgpack"))}
