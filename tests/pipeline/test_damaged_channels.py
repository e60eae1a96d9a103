"""A run whose channels are damaged or nonsense, through the whole pipeline to Perfetto."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sigmatrace import api
from sigmatrace.capture import items
from sigmatrace.capture.crc import crc32c
from sigmatrace.layout import TRACE
from sigmatrace.trace_format import RECORDS, Item, Schema

FIELDS = RECORDS[Schema.CHANNEL].fields or {}


def flip(path: Path, at: int, bit: int, *, sealed: bool) -> None:
    """Flip a bit of the first channel's record; ``sealed``: and make the checksum right."""
    raw = bytearray(path.read_bytes())
    span = next(
        span
        for span in items.walk(bytes(raw))
        if span.kind == Item.CHUNK and span.chunk.schema == Schema.CHANNEL
    )
    raw[span.offset + items.CHUNK_HEAD_BYTES + at] ^= bit
    if sealed:
        item = raw[span.offset : span.offset + span.size]
        raw[span.offset + 7 : span.offset + 11] = struct.pack(">I", crc32c(bytes(item[11:])))
    path.write_bytes(raw)


def test_operations_of_lost_channels_are_in_the_trace(small, trace_processor):
    flip(sorted(small.glob("*.msgpack"))[0], 0, 1, sealed=False)
    result = api.run(small, export=["perfetto"])
    assert result.ledger["balanced"] and not result.ledger["lossless"]
    assert result.ledger["capture"]["unknown_channel"] > 0
    counts = result.ledger["exports"]["perfetto"]
    assert counts["op_records"] == 200
    tp = trace_processor(result.out / TRACE)
    assert tp.problems() == []
    assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"]


@pytest.mark.parametrize("field", FIELDS)
def test_nonsense_in_a_channel_is_no_traceback(small, trace_processor, field):
    _, at = FIELDS[field][:2]
    flip(sorted(small.glob("*.msgpack"))[0], at, 8, sealed=True)
    result = api.run(small, export=["perfetto"])
    assert result.ledger["balanced"], [line for line in result.ledger["balance"] if not line["ok"]]
    counts = result.ledger["exports"]["perfetto"]
    tp = trace_processor(result.out / TRACE)
    assert tp.problems() == []
    assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"]
