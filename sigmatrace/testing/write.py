"""An independent writer of the trace format, for tests and synthetic runs.

It follows ``docs/format.md`` alone and shares with the reader only the names of ``trace_format.py``
and the checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from sigmatrace.capture.crc import crc32c
from sigmatrace.trace_format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    RECORDS,
    Item,
    Schema,
    record_fields,
)

_UNITS = {"t_tsc": "tsc", "size_bytes": "bytes"}


def item(kind: int, body: bytes) -> bytes:
    """Return an item with a right checksum."""
    tail = struct.pack(">BBI", kind, 0xCE, len(body)) + body
    return b"\x95\xa4STRC" + struct.pack(">BI", 0xCE, crc32c(tail)) + tail


def map_item(kind: int, fields: Mapping[str, Any]) -> bytes:
    """Return an item whose body is this map."""
    return item(kind, msgpack.packb(dict(fields)))


def schemas() -> dict[str, Any]:
    """Return the ``schemas`` of a header."""
    return {
        str(int(schema)): {
            "name": schema.name.lower(),
            "size": dtype.itemsize,
            "fields": [
                [name, spelled, _UNITS.get(name, "")] for name, spelled in record_fields(dtype)
            ],
        }
        for schema, dtype in RECORDS.items()
    }


def header_item(
    host: str = "host", pid: int = 1, start_ns: int = 10**18, **fields: object
) -> bytes:
    """Return a header item; ``fields`` replace or add to the defaults."""
    defaults: dict[str, object] = {
        "format": FORMAT_NAME,
        "version": list(FORMAT_VERSION),
        "host": host,
        "boot_id": f"boot-{host}",
        "pid": pid,
        "ppid": 1,
        "start_ns": start_ns,
        "run_id": "run",
        "rank": -1,
        "world": -1,
        "rank_source": "",
        "command": ["program", "an argument"],
        "exe": "/usr/bin/program",
        "mode": "simple",
        "layers": ["ofi", "ucp"],
        "tsc_hz": 2_000_000_000,
        "tsc_source": "cpuid",
        "clock": "realtime",
        "schemas": schemas(),
        "calls": {"1": "fi_send", "2": "fi_recv"},
    }
    return map_item(Item.HEADER, {**defaults, **fields})


def chunk_item(
    schema: int, thread: int, seq: int, records: np.ndarray, dropped: int = 0, codec: int = 0
) -> bytes:
    """Return a chunk item of these records."""
    names = records.dtype.names or ()
    times = records["t_tsc"] if "t_tsc" in names and len(records) else np.zeros(1, np.uint64)
    data = records.tobytes()
    head = b"".join(
        (
            b"\x89\xa6schema\xcc" + struct.pack(">B", schema),
            b"\xa6thread\xce" + struct.pack(">I", thread),
            b"\xa3seq\xcf" + struct.pack(">Q", seq),
            b"\xa5count\xce" + struct.pack(">I", len(records)),
            b"\xa9first_tsc\xcf" + struct.pack(">Q", int(times.min())),
            b"\xa8last_tsc\xcf" + struct.pack(">Q", int(times.max())),
            b"\xa7dropped\xcf" + struct.pack(">Q", dropped),
            b"\xa5codec\xcc" + struct.pack(">B", codec),
            b"\xa4data\xc6" + struct.pack(">I", len(data)),
        )
    )
    return item(Item.CHUNK, head + data)


class RankFile:
    """Writes one rank file, and keeps the totals that its end item tells.

    Args:
        folder: The run.
        fields: Of the header: ``host``, ``pid``, ``start_ns``, ``rank``, ...
    """

    def __init__(
        self,
        folder: Path,
        host: str = "host",
        pid: int = 1,
        start_ns: int = 10**18,
        **fields: object,
    ) -> None:
        self.path = folder / f"{host}-{pid}-{start_ns}.msgpack"
        self.written = {int(schema): 0 for schema in Schema}
        self._dropped: dict[tuple[int, int], int] = {}
        self._seq: dict[tuple[int, int], int] = {}
        self._objects = 0
        self._file: BinaryIO = self.path.open("wb")
        self._file.write(header_item(host, pid, start_ns, **fields))

    def __enter__(self) -> RankFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, raw: bytes) -> None:
        """Write bytes as they are."""
        self._file.write(raw)

    def object(self, kind: str, number: int = 0, **fields: object) -> int:
        """Write an object, and return its id: ``number``, or the next one."""
        self._objects = (
            max(self._objects + 1, number) if number == 0 else max(self._objects, number)
        )
        number = number or self._objects
        self.write(map_item(Item.OBJECT, {"type": kind, "id": number, "t_tsc": 0, **fields}))
        return number

    def clock(self, tsc: int, wall_ns: int, width_tsc: int = 40, source: str = "realtime") -> None:
        """Write a clock pair."""
        fields = {"tsc": tsc, "wall_ns": wall_ns, "width_tsc": width_tsc, "source": source}
        self.write(map_item(Item.CLOCK, fields))

    def chunk(self, schema: Schema, thread: int, records: np.ndarray) -> None:
        """Write records as the next chunk of their (schema, thread)."""
        key = int(schema), thread
        seq = self._seq.get(key, 0)
        self._seq[key] = seq + 1
        self.written[int(schema)] += len(records)
        self.write(chunk_item(schema, thread, seq, records, self._dropped.get(key, 0)))

    def drop(self, schema: Schema, thread: int, records: int) -> None:
        """Count records as dropped at capture."""
        key = int(schema), thread
        self._dropped[key] = self._dropped.get(key, 0) + records

    def end(
        self, t_tsc: int = 0, reason: str = "exit", lost: Mapping[str, int] | None = None
    ) -> None:
        """Write the end item."""
        dropped = dict.fromkeys(self.written, 0)
        for (schema, _), count in self._dropped.items():
            dropped[schema] += count
        totals = {
            str(schema): {"written": written, "dropped": dropped[schema]}
            for schema, written in self.written.items()
        }
        fields = {"t_tsc": t_tsc, "schemas": totals, "lost": dict(lost or {}), "reason": reason}
        self.write(map_item(Item.END, fields))


def ring_file(
    areas: Sequence[tuple[Schema, int, int, np.ndarray]],
    capacity: int = 64,
    control_bytes: int = 4096,
) -> bytes:
    """Return a ring file.

    Args:
        areas: (schema, thread, seq, records) of each segment in use.
        capacity: Records that a segment has room for.
        control_bytes: Of an area's control block.
    """
    blocks = []
    for schema, thread, seq, records in areas:
        size = RECORDS[schema].itemsize
        area_bytes = control_bytes + -(-capacity * size // 4096) * 4096
        numbers = (
            1,
            area_bytes,
            schema,
            thread,
            seq,
            len(records),
            0,
            size,
            capacity,
            control_bytes,
        )
        control = struct.pack("<QQIIQQQQQQ", *numbers)
        block = control.ljust(control_bytes, b"\0") + records.tobytes()
        blocks.append(block.ljust(area_bytes, b"\0"))
    total = 4096 + sum(map(len, blocks))
    first = struct.pack("<8sIIIIQ", b"STRCRING", 1, 4096, control_bytes, len(areas), total)
    return first.ljust(4096, b"\0") + b"".join(blocks)


def records(schema: Schema, rows: int, **columns: object) -> np.ndarray:
    """Return ``rows`` records of a schema; columns that are not given are 0."""
    table = np.zeros(rows, RECORDS[schema])
    for name, values in columns.items():
        table[name] = values
    return table
