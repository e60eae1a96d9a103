"""A slow, straightforward reader of rank and ring files, written from docs/format.md alone.

It shares no code with the package: tests compare what the core wrote with what this finds.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

MAGIC = b"\x95\xa4STRC"
PREFIX = 17
RECORD_FORMATS = {
    1: ("<QQIIBBBBI", "t_tsc size_bytes channel ordinal op call depth flags aux"),
    2: ("<QQQQIIBBBBI", "t_tsc peer tag data id object kind dir layer flags thread_shared"),
    3: ("<QQIIiBBBB", "t_tsc size_bytes channel ordinal status op call depth flags"),
    4: ("<QdIB3x", "t_tsc value name kind"),
    5: ("<QQIBBBB", "count size_bytes channel op size_bits depth flags"),
    6: ("<QQQII", "raddr rkey context channel ordinal"),
    7: (
        "<QQQIIIIIBBBB",
        "t_tsc wr_id raddr size_bytes rkey imm object position opcode sges flags queue",
    ),
    8: (
        "<QQQIIIIIBBBB",
        "t_tsc posted_tsc wr_id size_bytes imm object position first opcode status flags queue",
    ),
    9: ("<QQQIIIII4x", "t_tsc value index uar qp slots delay_tsc flags"),
    10: ("<QQIB3x8Q", "t_tsc index qp kind w0 w1 w2 w3 w4 w5 w6 w7"),
    11: (
        "<QQIIIIIII4x",
        "t_tsc duration_tsc name gpu context stream correlation blocks threads",
    ),
}

CHUNK_FIELDS = (
    *("schema", "thread", "seq", "count"),
    *("first_tsc", "last_tsc", "dropped", "codec", "data"),
)
AREA_FIELDS = (
    *("state", "size", "schema", "thread", "seq"),
    *("count", "dropped", "record_size", "capacity", "offset"),
)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C, one byte at a time."""
    crc = 0xFFFFFFFF
    table = TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


@dataclass
class Rank:
    """What one process left behind."""

    path: Path
    header: dict[str, Any]
    chunks: list[dict[str, Any]] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)
    clocks: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    bad_bytes: int = 0
    from_ring: int = 0
    told: dict[Any, tuple[int, int]] = field(default_factory=dict)  # by the program itself

    def records(self, schema: int) -> list[dict[str, Any]]:
        """All records of a schema, as dicts, chunk by chunk."""
        form, names = RECORD_FORMATS[schema]
        keys = names.split()
        return [
            dict(zip(keys, values, strict=True)) | {"thread": chunk["thread"]}
            for chunk in self.chunks
            if chunk["schema"] == schema
            for values in struct.iter_unpack(form, chunk["data"])
        ]

    def objects_of(self, kind: str) -> list[dict[str, Any]]:
        """The object items of a type, in the order of the file."""
        return [item for item in self.objects if item["type"] == kind]


def _items(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """All whole items with their kind, and the number of bytes in no whole item."""
    items, at, bad = [], 0, 0
    while at < len(data):
        whole = False
        if data[at : at + 6] == MAGIC and at + PREFIX <= len(data):
            crc, kind = struct.unpack(">IB", data[at + 7 : at + 12])
            length = struct.unpack(">I", data[at + 13 : at + 17])[0]
            end = at + PREFIX + length
            whole = end <= len(data) and crc32c(data[at + 11 : end]) == crc
        if whole:
            item = msgpack.unpackb(data[at:end])
            assert item[0] == "STRC" and item[1] == crc and item[2] == kind and item[3] == length
            items.append((kind, item[4]))
            at = end
        else:
            found = data.find(MAGIC, at + 1)
            bad += (found if found >= 0 else len(data)) - at
            at = found if found >= 0 else len(data)
    return items, bad


def _areas(data: bytes) -> list[dict[str, Any]]:
    assert data[:8] == b"STRCRING"
    version, header, control, _areas_in_use, size = struct.unpack("<IIIIQ", data[8:32])
    assert (version, header, control) == (1, 4096, 4096) and size <= len(data)
    areas, at = [], header
    names = AREA_FIELDS
    while at + control <= len(data):
        area = dict(zip(names, struct.unpack("<QQIIQQQQQQ", data[at : at + 72]), strict=True))
        if not area["size"]:  # it was being made: the next one begins at a later page
            at += 4096
            continue
        if area["state"] == 1:
            first = at + area["offset"]
            area["data"] = data[first : first + area["count"] * area["record_size"]]
            areas.append(area)
        at += area["size"]
    return areas


def read(path: Path) -> Rank:
    """Reads a rank file, and its ring file when there is one."""
    items, bad = _items(path.read_bytes())
    assert items and items[0][0] == 0, "the first item is the header"
    rank = Rank(path, items[0][1], bad_bytes=bad)
    for kind, body in items[1:]:
        if kind == 1:
            assert tuple(body) == CHUNK_FIELDS
            rank.chunks.append(body)
        elif kind == 4:
            rank.end = body
        else:
            {2: rank.objects, 3: rank.clocks}[kind].append(body)
    ring = path.with_suffix(".ring")
    if ring.exists():
        have = {(c["schema"], c["thread"], c["seq"]) for c in rank.chunks}
        for area in _areas(ring.read_bytes()):
            if area["count"] and (area["schema"], area["thread"], area["seq"]) not in have:
                rank.chunks.append(area)
                rank.from_ring += 1
    # A thread's chunks are numbered; the file has them in the order in which they were written.
    rank.chunks.sort(key=lambda chunk: (chunk["thread"], chunk["schema"], chunk["seq"]))
    _check(rank)
    return rank


def _check(rank: Rank) -> None:
    """What must hold for every file: sizes, sequence numbers, times."""
    seqs = defaultdict(list)
    for chunk in rank.chunks:
        form, _ = RECORD_FORMATS[chunk["schema"]]
        assert len(chunk["data"]) == chunk["count"] * struct.calcsize(form)
        seqs[chunk["schema"], chunk["thread"]].append(chunk["seq"])
        if chunk["schema"] not in (5, 6) and "first_tsc" in chunk:
            times = [values[0] for values in struct.iter_unpack(form, chunk["data"])]
            assert (min(times), max(times)) == (chunk["first_tsc"], chunk["last_tsc"])
    for key, numbers in seqs.items():
        assert sorted(numbers) == list(range(len(numbers))), (key, numbers)


def read_all(folder: Path) -> list[Rank]:
    """All rank files of a folder, by start time."""
    ranks = [read(path) for path in folder.glob("*.msgpack")]
    return sorted(ranks, key=lambda rank: rank.header["start_ns"])


def merged(rank: Rank, kind: str) -> list[dict]:
    """The last state of each object of a type."""
    found: dict[int, dict] = {}
    for item in rank.objects_of(kind):
        found.setdefault(item["id"], {}).update({k: v for k, v in item.items() if k != "t_tsc"})
    return list(found.values())
