"""Items against what was written, and against what nobody should ever write."""

from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc
from pathlib import Path

import msgpack
import numpy as np
import pytest
from capture_cases import NAME, check_balance, load_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.capture import items
from sigmatrace.capture.bodies import Decoder, ItemError, value
from sigmatrace.capture.view import opened
from sigmatrace.testing.write import chunk_item, header_item, item, map_item, records
from sigmatrace.trace_format import ITEM_MAGIC, Item, Schema

TEXT = st.text("az_ é€\0", max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(TEXT, VALUES, max_size=5), max_size=6))
def test_maps_come_back(bodies: list[dict[str, object]]) -> None:
    data = b"".join(map_item(Item.OBJECT, body) for body in bodies)
    found = list(items.walk(data))
    assert [Decoder().decode(items.body(data, span)) for span in found] == bodies
    assert all(span.what == items.WHOLE and span.checked for span in found)


@settings(deadline=None)
@given(st.lists(st.integers(0, 20_000), max_size=12), st.integers(0, 3))
def test_items_of_any_size_come_back(tmp_path_factory, sizes: list[int], rows: int) -> None:
    """Small ones are looked at together, as far as one look goes."""
    chunk = chunk_item(Schema.OP, 1, 0, records(Schema.OP, rows)) if rows else b""
    written = [item(at % 128, bytes(size)) for at, size in enumerate(sizes) if at != Item.CHUNK]
    parts = [*written, chunk, *written]
    path = tmp_path_factory.mktemp("sizes") / NAME
    path.write_bytes(b"".join(parts))
    offsets = np.cumsum([0, *map(len, parts)])
    with opened(path) as view:
        for data in (view, path.read_bytes()):
            for verify in (False, True):
                spans = [(x.offset, x.size) for x in items.walk(data, verify=verify)]
                assert spans == [
                    (at, len(part)) for at, part in zip(offsets, parts, strict=False) if part
                ]


@given(st.lists(st.dictionaries(TEXT, VALUES, max_size=5), max_size=4), st.binary(max_size=20))
def test_a_decoder_forgets_what_it_could_not_decode(
    bodies: list[dict[str, object]], bad: bytes
) -> None:
    decoder = Decoder()
    for body in bodies:
        with contextlib.suppress(ItemError):
            decoder.decode(bad)
        assert decoder.decode(msgpack.packb(body)) == body


@given(st.dictionaries(TEXT, VALUES, max_size=20), st.sets(TEXT))
def test_some_values_stay_encoded(body: dict[str, object], some: set[str]) -> None:
    keys = {*some, *list(body)[::2]}
    found = Decoder().decode(msgpack.packb(body), keys)
    for key in keys & body.keys():
        found[key] = value(found[key])
    assert found == body


@pytest.mark.parametrize(
    "body", [b"\x80\x80", b"", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\x81\x80\x02"]
)
def test_what_is_refused_is_refused_with_encoded_values(body: bytes) -> None:
    said = []
    for keys in ((), ("a",)):
        with pytest.raises(ItemError) as error:
            Decoder().decode(body, keys)
        said.append(str(error.value))
    assert said[0] == said[1]


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 20))
def test_garbage_between_items(before: bytes, after: bytes, rows: int) -> None:
    whole = chunk_item(Schema.OP, 1, 0, records(Schema.OP, rows, size_bytes=np.arange(rows)))
    data = before + whole + after
    found = list(items.walk(data))
    assert sum(span.size for span in found) == len(data)
    assert (len(before), len(whole)) in [(x.offset, x.size) for x in found if x.what == items.WHOLE]
    assert list(items.walk(data, verify=True)) == [
        span._replace(checked=True) if span.what == items.WHOLE else span for span in found
    ]


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_tiled(tail: bytes) -> None:
    for data in (tail, ITEM_MAGIC + tail, header_item()[:40] + tail):
        found = list(items.walk(data))
        assert sum(span.size for span in found) == len(data)
        assert all(span.size > 0 for span in found)


def test_an_item_inside_the_data_of_a_good_chunk_is_data() -> None:
    inner = (header_item() + bytes(64))[: 32 * 40]
    rows = np.frombuffer(inner + bytes(-len(inner) % 32), records(Schema.OP, 0).dtype)
    data = chunk_item(Schema.OP, 1, 0, rows) + map_item(Item.CLOCK, {})
    for verify in (False, True):
        assert [x.kind for x in items.walk(data, verify=verify)] == [Item.CHUNK, Item.CLOCK]


def test_chunks_that_do_not_follow_the_layout_are_whole_but_unknown(tmp_path: Path) -> None:
    loose = map_item(Item.CHUNK, {"schema": 1, "data": b"x" * 32})
    packed = chunk_item(Schema.OP, 1, 0, records(Schema.OP, 2), codec=3)
    new = item(9, b"\x80") + chunk_item(77, 1, 0, records(Schema.OP, 1))
    odd = map_item(Item.OBJECT, {"id": 4, "type": "odd"})
    (tmp_path / NAME).write_bytes(header_item() + loose + packed + new + odd)
    loaded = load_folder(tmp_path)
    check_balance(loaded)
    [file] = loaded.account.files
    assert file.whole == file.size_bytes
    assert loaded.account.unknown == {
        "layout of a chunk": 1,
        "codec 3": 1,
        "item kind 9": 1,
        "schema 77": 1,
        "object type 'odd'": 1,
    }
    assert loaded.run.column("damage", "what").tolist() == ["unknown"] * 5
    assert loaded.account.schemas["op"].read_open == 0


HOSTILE_BODIES = {
    "huge array": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge text": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "huge binary": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "arrays of arrays that claim to be long": b"\x81\xa1a" + b"\xdd\x00\xff\xff\xff" * 400,
    "deep nesting": b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    "deep maps": b"\x81\xa1a" * 5000 + b"\xc0",
    "extension": b"\x81\xa1a\xc7\x08\x05" + bytes(8),
    "timestamp": b"\x81\xa1a\xd6\xff" + bytes(4),
    "two objects": b"\x80\x80",
    "nothing": b"",
    "not a map": b"\x93\x01\x02\x03",
    "number as key": b"\x81\x01\x02",
    "map as key": b"\x81\x80\x02",
    "reserved byte": b"\xc1",
}


@pytest.mark.parametrize("body", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
@pytest.mark.parametrize("kind", [Item.HEADER, Item.CHUNK, Item.OBJECT, Item.CLOCK, Item.END])
def test_hostile_bodies(tmp_path: Path, kind: Item, body: bytes) -> None:
    start = b"" if kind == Item.HEADER else header_item()
    good = chunk_item(Schema.OP, 1, 0, records(Schema.OP, 3))
    (tmp_path / NAME).write_bytes(start + item(kind, body) + good)
    load_folder(tmp_path)
    tracemalloc.start()
    loaded = load_folder(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 + 50 * len(body)
    assert loaded.account.schemas["op"].read_open == 3
    assert sum(loaded.account.unknown.values()) == 1
    check_balance(loaded)


HOSTILE_FIELDS = {
    "end": (Item.END, {"schemas": {"1": {"written": -5, "dropped": 2**64 - 1}, "x": 3}, "lost": 7}),
    "end without totals": (Item.END, {"schemas": []}),
    "clock": (Item.CLOCK, {"tsc": -1, "wall_ns": 2**64 - 1, "width_tsc": "wide"}),
    "object": (Item.OBJECT, {"id": -1, "type": ["thread"]}),
    "object of wrong types": (
        Item.OBJECT,
        {"id": 5, "type": "ofi_endpoint", "local": "text", "av": -3, "depth": 1e300, "prov": b"x"},
    ),
    "object with huge numbers": (
        Item.OBJECT,
        {"id": 2**32 - 1, "type": "ofi_address", "addr": 2**64 - 1, "av": 2**40, "address": b"\2"},
    ),
}


@pytest.mark.parametrize("case", HOSTILE_FIELDS.values(), ids=HOSTILE_FIELDS)
def test_hostile_fields(tmp_path: Path, case: tuple[Item, dict[str, object]]) -> None:
    good = chunk_item(Schema.OP, 1, 0, records(Schema.OP, 3))
    (tmp_path / NAME).write_bytes(header_item() + good + map_item(*case))
    check_balance(load_folder(tmp_path))


def test_hostile_header(tmp_path: Path) -> None:
    header = header_item(
        rank=2**40, world="many", command={"a": 1}, calls={"1": 5, "-1": "x", "999": "y", "٣": "z"},
        layers=7, start_ns=-1, pid=[], schemas={"1": 3, "2": {"size": "48"}}, tsc_hz=-1,
    )  # fmt: skip
    (tmp_path / NAME).write_bytes(header + chunk_item(Schema.OP, 1, 0, records(Schema.OP, 3)))
    loaded = load_folder(tmp_path)
    assert loaded.account.unknown == {"layout of schema 1": 1}
    check_balance(loaded)


def test_records_of_other_fields_than_the_readers_are_not_read(tmp_path: Path) -> None:
    fields = [["size_bytes", "<u8"], ["t_tsc", "<u8"], ["rest", "16u1"]]
    header = header_item(schemas={"1": {"name": "op", "size": 32, "fields": fields}})
    (tmp_path / NAME).write_bytes(header + chunk_item(Schema.OP, 1, 0, records(Schema.OP, 3)))
    loaded = load_folder(tmp_path)
    assert loaded.account.unknown == {"layout of schema 1": 1}
    assert loaded.account.schemas["op"].read == 0
    check_balance(loaded)


def test_numbers_of_a_chunk_that_lie(tmp_path: Path) -> None:
    good = chunk_item(Schema.OP, 1, 2**64 - 1, records(Schema.OP, 3), dropped=2**64 - 1)
    lying = bytearray(chunk_item(Schema.OP, 1, 0, records(Schema.OP, 3)))
    at = lying.index(b"count") + 6
    lying[at : at + 4] = struct.pack(">I", 2**32 - 1)
    fixed = item(Item.CHUNK, bytes(lying[17:]))
    (tmp_path / NAME).write_bytes(header_item() + bytes(lying) + fixed + good)
    loaded = load_folder(tmp_path)
    assert loaded.account.schemas["op"].read_open == 3
    assert loaded.account.unknown == {"record size of schema 1": 1}
    [file] = loaded.account.files
    assert file.damaged == len(lying)
    check_balance(loaded)


def test_a_file_full_of_beginnings_takes_linear_time() -> None:
    beginning = struct.pack(">6sBIBBI", ITEM_MAGIC, 0xCE, 0, Item.OBJECT, 0xCE, 1_000_000)
    data = beginning * (2_000_000 // len(beginning))
    begin = time.process_time()
    [damaged, *rest] = items.walk(data)
    assert damaged.what == items.DAMAGED
    assert damaged.size + sum(span.size for span in rest) == len(data)
    assert time.process_time() - begin < 20


def test_undecodable_text_is_replaced() -> None:
    raw = item(Item.OBJECT, b"\x81\xa4name\xa2\xff\xfe")
    [span] = items.walk(raw)
    assert Decoder().decode(items.body(raw, span)) == {"name": "\ufffd\ufffd"}


def test_the_stream_is_plain_msgpack(small: bytes) -> None:
    """Any msgpack reader finds the items."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(small)
    found = list(unpacker)
    spans = list(items.walk(small))
    assert [one[2] for one in found] == [span.kind for span in spans]
    assert all(one[0] == "STRC" and len(one) == 5 for one in found)
    assert [one[3] + 17 for one in found] == [span.size for span in spans]
    for one, span in zip(found, spans, strict=True):
        if span.kind != Item.CHUNK:
            assert one[4] == Decoder().decode(items.body(small, span))
        else:
            assert one[4]["count"] == span.chunk.records
            assert len(one[4]["data"]) == span.chunk.data_bytes
