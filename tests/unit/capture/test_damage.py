"""A small file cut at every byte, and with a flipped bit at every byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from capture_cases import (
    NAME,
    UNIQUE,
    Loaded,
    check_balance,
    load_folder,
    small_channels,
    small_records,
)

from sigmatrace.capture import items
from sigmatrace.errors import RunNotFoundError
from sigmatrace.trace_format import Item, Schema

Span = items.Span


def expected(spans: list[Span]) -> dict[Schema, Counter[int]]:
    """Return what should be read when these items of the small file are whole."""
    want = {schema: Counter[int]() for schema in UNIQUE}
    chunks = [x for x in spans if x.kind == Item.CHUNK and x.chunk.schema != Schema.CHANNEL]
    for span in chunks:
        schema = Schema(span.chunk.schema)
        want[schema].update(PAYLOAD[span.offset])
    return want


PAYLOAD: dict[int, list[int]] = {}


@pytest.fixture(scope="module")
def spans(small: bytes) -> list[Span]:
    """The spans of the undamaged file; also notes what each chunk holds."""
    found = list(items.walk(small))
    events = [x for x in found if x.kind == Item.CHUNK and x.chunk.schema != Schema.CHANNEL]
    for span, (schema, chunk) in zip(events, small_records(), strict=True):
        assert span.chunk.schema == schema
        used = chunk[chunk["count"] > 0] if schema == Schema.AGGREGATE else chunk
        PAYLOAD[span.offset] = used[UNIQUE[schema]].tolist()
    return found


def test_the_small_file_has_every_kind(small: bytes, spans: list[Span]) -> None:
    assert len(small) < 6000
    assert {span.kind for span in spans} == set(Item)
    assert {span.what for span in spans} == {items.WHOLE}


def test_undamaged(small: bytes, spans: list[Span], tmp_path: Path) -> None:
    loaded = load(small, tmp_path)
    assert loaded.seen() == expected(spans)
    check_balance(loaded)
    assert loaded.account.lost_at_capture == {"objects": 2}
    assert loaded.account.schemas["aggregate"].unused == 2


def load(data: bytes, folder: Path) -> Loaded:
    (folder / NAME).write_bytes(data)
    return load_folder(folder)


def test_cut_at_every_byte(small: bytes, spans: list[Span], tmp_path: Path) -> None:
    for size in range(len(small)):
        loaded = load(small[:size], tmp_path)
        whole = [span for span in spans if span.offset + span.size <= size]
        assert loaded.seen() == expected(whole), size
        check_balance(loaded)
        [file] = loaded.account.files
        assert file.whole == sum(span.size for span in whole), size
        assert file.cut == size - file.whole, size


def test_flipped_bit_at_every_byte(small: bytes, spans: list[Span], tmp_path: Path) -> None:
    for at in range(len(small)):
        data = bytearray(small)
        data[at] ^= 1 << (5 * at % 8)
        loaded = load(bytes(data), tmp_path)
        hit = next(x for x in spans if x.offset <= at < x.offset + x.size)
        others = [span for span in spans if span != hit]
        assert loaded.seen() == expected(others), at
        check_balance(loaded)
        [file] = loaded.account.files
        assert file.whole == len(small) - hit.size, at
        assert file.damaged + file.cut == hit.size, at
        check_channels(loaded, hit)
        assert_same_when_verified(bytes(data), loaded)


def check_channels(loaded: Loaded, hit: Span) -> None:
    is_channel = hit.kind == Item.CHUNK and hit.chunk.schema == Schema.CHANNEL
    known = 0 if is_channel else len(small_channels())
    assert loaded.bases[0].channel_count == known
    numbers = loaded.run.tables["channels"].num_rows
    for table in ("ops", "completions", "targets", "aggregates"):
        assert loaded.column(table, "channel").max(initial=0) < numbers


def assert_same_when_verified(data: bytes, loaded: Loaded) -> None:
    """The account is the same whether data is checked by the walk or when it is read."""
    sizes = Counter[str]()
    for span in items.walk(data, verify=True):
        sizes[span.what] += span.size
    [file] = loaded.account.files
    assert (file.whole, file.damaged, file.cut) == (
        sizes[items.WHOLE],
        sizes[items.DAMAGED],
        sizes[items.CUT],
    )


def test_every_flipped_bit_costs_its_item_alone(small: bytes, spans: list[Span]) -> None:
    for span in spans:
        others = [(x.offset, x.kind) for x in spans if x != span]
        for at in range(span.offset, span.offset + span.size):
            for bit in range(8):
                data = bytearray(small)
                data[at] ^= 1 << bit
                found = list(items.walk(bytes(data), verify=True))
                assert [(x.offset, x.kind) for x in found if x.what == items.WHOLE] == others
                assert [x.offset for x in found] == tile(found)
                assert sum(x.size for x in found) == len(small)


def tile(found: list[Span]) -> list[int]:
    offsets = [0]
    for span in found:
        offsets.append(offsets[-1] + span.size)
    return offsets[:-1]


def test_damage_of_a_file_with_another_name(small: bytes, tmp_path: Path) -> None:
    """Without a header and without a telling name nothing can be said of a file."""
    data = bytearray(small)
    data[50] ^= 1
    (tmp_path / "renamed.msgpack").write_bytes(bytes(data))
    with pytest.raises(RunNotFoundError):
        load_folder(tmp_path)
    (tmp_path / "renamed.msgpack").write_bytes(small)
    assert load_folder(tmp_path).account.schemas["op"].read == 10


def test_two_flips_far_apart(small: bytes, spans: list[Span], tmp_path: Path) -> None:
    first, last = spans[1], spans[-3]
    data = bytearray(small)
    data[first.offset + 14] ^= 0x40
    data[last.offset] ^= 1
    loaded = load(bytes(data), tmp_path)
    assert loaded.seen() == expected([x for x in spans if x not in (first, last)])
    check_balance(loaded)
