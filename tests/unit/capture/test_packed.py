"""Packed data against a plain reader of the format, for any records, and for any damage."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sigmatrace.capture import packed
from sigmatrace.capture.packed import EQUAL, NONE, PREVIOUS, Column, PackedError
from sigmatrace.testing.write import records
from sigmatrace.trace_format import RECORDS, Op, Schema
from tests import packed_reference

COLUMN = struct.Struct("<BBBBBQ")
SCHEMAS = list(RECORDS)


def as_bytes(table: np.ndarray) -> np.ndarray:
    return np.frombuffer(table.tobytes(), np.uint8)


def unpacked(data: bytes, size: int, record_bytes: int) -> bytes:
    out = np.full(size, 0xA5, np.uint8)
    packed.unpack(np.frombuffer(data, np.uint8), out, record_bytes)
    return out.tobytes()


def check(table: np.ndarray, columns: tuple[Column, ...], record_bytes: int) -> bytes:
    data = packed.pack(table, columns)
    assert unpacked(data, table.size, record_bytes) == table.tobytes()
    count = table.size // record_bytes
    assert packed_reference.unpack(data, count, record_bytes) == table.tobytes()
    return data


@st.composite
def any_records(draw: st.DrawFn) -> tuple[Schema, np.ndarray]:
    """Bytes that may be anything; short patterns again and again are likely, and so are runs."""
    schema = draw(st.sampled_from(SCHEMAS))
    count = draw(st.integers(1, 70))
    size = count * RECORDS[schema].itemsize
    pattern = draw(st.binary(min_size=1, max_size=200))
    raw = (pattern * (size // len(pattern) + 1))[:size]
    noise = draw(st.binary(max_size=64))
    return schema, np.frombuffer((noise + raw)[:size], np.uint8)


@settings(deadline=None, max_examples=150)
@given(any_records())
def test_any_records_come_back(given: tuple[Schema, np.ndarray]) -> None:
    schema, table = given
    dtype = RECORDS[schema]
    check(table, packed.choose(table, dtype), dtype.itemsize)


@st.composite
def any_columns(draw: st.DrawFn) -> tuple[int, tuple[Column, ...]]:
    widths = draw(st.lists(st.sampled_from((4, 8)), min_size=1, max_size=6))
    starts = np.cumsum([0, *widths]).tolist()
    order = draw(st.permutations(range(len(widths))))
    columns: list[Column] = []
    for i in order:
        how = draw(st.sampled_from((NONE, PREVIOUS, EQUAL) if columns else (NONE, PREVIOUS)))
        key = draw(st.sampled_from(columns)).at if how == EQUAL else 0
        columns.append(Column(starts[i], widths[i], how, key))
    return starts[-1], tuple(columns)


@settings(deadline=None, max_examples=150)
@given(any_columns(), st.binary(min_size=1, max_size=300), st.integers(1, 40))
def test_any_columns_in_any_order(
    plan: tuple[int, tuple[Column, ...]], pattern: bytes, count: int
) -> None:
    record_bytes, columns = plan
    size = record_bytes * count
    raw = (pattern * (size // len(pattern) + 1))[:size]
    check(np.frombuffer(raw, np.uint8), columns, record_bytes)


def operations(rows: int, channels: int = 2000) -> np.ndarray:
    """Sends and receives of many channels: the ordinals of each go on, the times go up."""
    rng = np.random.default_rng(7)
    table = records(Schema.OP, rows, channel=rng.integers(0, channels, rows), call=3)
    table["t_tsc"] = 2**63 + np.cumsum(rng.integers(1, 9000, rows)).astype(np.uint64)
    table["size_bytes"] = rng.choice([0, 8, 4096, 2**20], rows)
    table["op"] = np.where(table["channel"] % 2, Op.SEND, Op.RECV)
    receives = np.flatnonzero(table["op"] == Op.RECV)
    table["aux"][receives] = 900_000 + np.arange(len(receives))
    seen = dict.fromkeys(range(channels), 40_000)
    for row in range(rows):
        channel = int(table["channel"][row])
        table["ordinal"][row] = seen[channel]
        seen[channel] += 1
    return as_bytes(table)


@pytest.mark.parametrize("channels", [1, 16, 300])
def test_operations_take_few_bytes(channels: int) -> None:
    table = operations(8192, channels)
    data = check(table, packed.choose(table, RECORDS[Schema.OP]), 32)
    assert len(data) / 8192 < 6


def test_the_ordinals_of_a_channel_cost_nothing() -> None:
    table = operations(8192, 16)
    columns = {x.at: x for x in packed.choose(table, RECORDS[Schema.OP])}
    assert columns[20] == Column(20, 4, EQUAL, 16)  # ordinal by channel
    assert columns[0].how == PREVIOUS  # t_tsc


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("fill", [0, 0xFF])
def test_equal_records_are_within_the_factor(schema: Schema, fill: int) -> None:
    itemsize = RECORDS[schema].itemsize
    table = np.full(5000 * itemsize, fill, np.uint8)
    data = check(table, packed.choose(table, RECORDS[schema]), itemsize)
    assert len(data) == -(-table.size // 1024)


GOOD = operations(300, 5)
PACKED = packed.pack(GOOD, packed.choose(GOOD, RECORDS[Schema.OP]))


def test_data_cut_anywhere_is_refused() -> None:
    for size in range(len(PACKED)):
        with pytest.raises(PackedError):
            unpacked(PACKED[:size], GOOD.size, 32)


def test_any_wrong_byte_is_refused_or_gives_as_many_records() -> None:
    refused = 0
    for at in range(len(PACKED)):
        bad = bytearray(PACKED)
        bad[at] ^= 1 << at % 8
        try:
            first, second = (unpacked(bytes(bad), GOOD.size, 32) for _ in range(2))
            assert first == second == packed_reference.unpack(bytes(bad), 300, 32)
        except PackedError:
            refused += 1
            with pytest.raises((AssertionError, IndexError, KeyError, struct.error)):
                packed_reference.unpack(bytes(bad), 300, 32)
    assert refused > 50


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_data_is_refused_or_what_the_format_says(data: bytes, count: int) -> None:
    data = struct.pack("<I", count * 24) + data
    try:
        found = unpacked(data, count * 24, 24)
    except PackedError:
        return
    assert found == packed_reference.unpack(data.ljust(count, b"\0"), count, 24)


@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=2, max_size=60), st.integers(2, 300))
def test_any_lz4_block(block: bytes, count: int) -> None:
    assume(len(block) < count)
    data = head(count) + column(0, 8, planes=1) + struct.pack("<I", len(block)) + block
    try:
        want = packed_reference.lz4_block(block)
    except (AssertionError, IndexError, struct.error):
        want = b""
    if len(want) == count:
        # The library is stricter than the format: blocks end with literals of their own.
        try:
            assert unpacked(data, count * 8, 8)[::8] == want
        except PackedError:
            return
    else:
        with pytest.raises(PackedError):
            unpacked(data, count * 8, 8)


def head(count: int, columns: int = 1, record_bytes: int = 8) -> bytes:
    return struct.pack("<IB", count * record_bytes, columns)


def column(at: int, width: int, how: int = 0, key: int = 0, planes: int = 0) -> bytes:
    return COLUMN.pack(at, width, how, key, planes, 5)


NO_PLANES = bytes(4)
REFUSED = {
    "nothing": b"",
    "no columns": head(4, 0) + NO_PLANES,
    "half of the record": head(4) + column(0, 4) + NO_PLANES,
    "twice the same": head(4, 2) + column(0, 8) + column(0, 8) + NO_PLANES,
    "columns that overlap": head(4, 2) + column(0, 4) + column(0, 8) + NO_PLANES,
    "beyond the record": head(4, 2) + column(0, 4) + column(4, 8) + NO_PLANES,
    "far beyond the record": head(4, 2) + column(0, 8) + column(252, 8) + NO_PLANES,
    "an odd offset": head(4) + column(1, 4) + NO_PLANES,
    "an odd width": head(4) + column(0, 6) + NO_PLANES,
    "another prediction": head(4) + column(0, 8, 3) + NO_PLANES,
    "itself as key": head(4) + column(0, 8, 2, 0) + NO_PLANES,
    "a later key": head(4, 2) + column(0, 4, 2, 4) + column(4, 4) + NO_PLANES,
    "too many planes": head(4) + column(0, 8, planes=9) + b"\x24\0\0\0" + bytes(36),
    "planes that are too long": head(4) + column(0, 8, planes=1) + b"\5\0\0\0" + b"12345",
    "planes without bytes": head(4) + column(0, 8, planes=1) + NO_PLANES,
    "no planes with bytes": head(4) + column(0, 8) + b"\1\0\0\0" + b"\0",
    "planes beyond the end": head(4) + column(0, 8, planes=1) + b"\4\0\0\0" + b"123",
    "huge planes": head(4) + column(0, 8, planes=1) + b"\xff\xff\xff\xff",
    "a short LZ4 block": head(9) + column(0, 8, planes=1) + b"\2\0\0\0\x10a",
    "something behind": head(4) + column(0, 8) + NO_PLANES + b"\0\1",
    "other records": head(5) + column(0, 8) + NO_PLANES,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_breaks_the_rules_is_refused(data: bytes) -> None:
    count = 9 if data[:4] == head(9)[:4] else 4
    with pytest.raises(PackedError):
        unpacked(data, count * 8, 8)


def test_unpacking_takes_memory_for_a_few_columns_only() -> None:
    table = operations(8192, 16)
    data = np.frombuffer(packed.pack(table, packed.choose(table, RECORDS[Schema.OP])), np.uint8)
    out = np.empty_like(table)
    packed.unpack(data, out, 32)
    tracemalloc.start()
    packed.unpack(data, out, 32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * table.size
