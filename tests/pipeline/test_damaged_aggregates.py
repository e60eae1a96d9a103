"""A run of mode aggregate with wrong bytes, through the whole pipeline."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sigmatrace import api
from sigmatrace.capture import items
from sigmatrace.capture.crc import crc32c
from sigmatrace.errors import DataLossError
from sigmatrace.testing.write import RankFile, records, ring_file
from sigmatrace.trace_format import Dir, Item, Kind, Layer, MarkKind, Op, Schema

RANKS = 2
ROWS = 6


def write(folder: Path, rank: int, killed: bool) -> None:
    """Write the file of a rank; a killed one leaves its rows in the ring file."""
    tid = 10 + rank
    rows = records(
        Schema.AGGREGATE, ROWS, count=np.arange(ROWS), size_bytes=100 * np.arange(ROWS), op=Op.SEND
    )
    rows["channel"] = np.arange(ROWS) % 2
    rows["op"][1::2] = Op.RECV
    with RankFile(folder, pid=tid, rank=rank, world=RANKS, mode="aggregate") as file:
        worker = file.object("ucp_worker", uid=50 + rank)
        peer = file.object("ucp_ep", worker=worker, remote_uid=50 + (1 - rank))
        name = file.object("name", name="loop")
        both = {"kind": Kind.TAG, "layer": Layer.UCP, "object": worker, "peer": peer}
        channels = records(Schema.CHANNEL, 2, id=[0, 1], dir=[Dir.OUT, Dir.IN], **both)
        file.chunk(Schema.CHANNEL, tid, channels)
        for at in range(2):
            file.clock(1000 + 10**9 * at, 10**18 + 10**9 * at)
        kinds = list(MarkKind)
        marks = records(Schema.MARK, 4, t_tsc=[2000, 3000, 4000, 5000], name=name, kind=kinds)
        file.chunk(Schema.MARK, tid, marks)
        file.chunk(Schema.TARGET, tid, records(Schema.TARGET, 2, channel=[0, 1]))
        if not killed:
            file.chunk(Schema.AGGREGATE, tid, rows)
            file.end()
    if killed:
        ring = ring_file([(Schema.AGGREGATE, tid, 0, rows)], capacity=ROWS, control_bytes=128)
        file.path.with_suffix(".ring").write_bytes(ring)


def run(folder: Path, *, strict: bool = False) -> api.Result:
    export = ["json"] if strict else ["perfetto", "json", "parquet"]
    return api.run(folder, export=export, strict=strict, overwrite=True)


@pytest.mark.parametrize("killed", [False, True])
def test_without_damage(tmp_path: Path, killed: bool) -> None:
    for rank in range(RANKS):
        write(tmp_path, rank, killed and rank == 1)
    result = run(tmp_path)
    book = result.ledger
    assert all(line["ok"] for line in book["balance"])
    assert book["lossless"] != killed
    one = book["records"]["aggregate"]
    assert one["found"] == 2 * ROWS
    assert one["read"] + one["read_open"] == 2 * (ROWS - 1), "a row with count 0 is unused"
    assert one["unused"] + one["unused_open"] == 2
    assert book["capture"]["aggregated_operations"] == 2 * 15
    assert book["capture"]["aggregated_bytes"] == 2 * 1500
    if killed:
        with pytest.raises(DataLossError, match="no end item"):
            run(tmp_path, strict=True)
    else:
        run(tmp_path, strict=True)


def sealed(data: bytes) -> bytes:
    """Return a file of the same items with right checksums."""
    out = bytearray(data)
    at = 0
    while at + items.ITEM_PREFIX_BYTES <= len(out):
        size = items.ITEM_PREFIX_BYTES + struct.unpack_from(">I", out, at + 13)[0]
        out[at + 7 : at + 11] = struct.pack(">I", crc32c(out[at + 11 : at + size]))
        at += size
    return bytes(out)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_wrong_bytes_are_never_wrong_sums(tmp_path: Path, data: st.DataObject) -> None:
    """Wrong bytes in records, with a wrong checksum (damage) or a right one (nonsense)."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    killed = data.draw(st.booleans(), "killed")
    for rank in range(RANKS):
        write(folder, rank, killed and rank == 1)
    for path in sorted(folder.glob("*.msgpack")):
        raw = bytearray(path.read_bytes())
        chunks = [span for span in items.walk(bytes(raw)) if span.kind == Item.CHUNK]
        for _ in range(data.draw(st.integers(0, 3))):
            span = data.draw(st.sampled_from(chunks))
            at = data.draw(st.integers(items.CHUNK_HEAD_BYTES, span.size - 1))
            raw[span.offset + at] = data.draw(st.integers(0, 255))
        is_sealed = data.draw(st.booleans(), "right checksums")
        path.write_bytes(sealed(bytes(raw)) if is_sealed else bytes(raw))
    book = run(folder).ledger
    assert [line for line in book["balance"] if not line["ok"]] == []
    for total in book["records"].values():
        assert total["surplus"] == 0
    if book["lossless"]:
        run(folder, strict=True)
    else:
        with pytest.raises(DataLossError):
            run(folder, strict=True)
