"""WQEs are decoded alike by capture (C), by stage wqe (numba), and by plain Python."""

from __future__ import annotations

import random
from typing import Any

import cffi
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_run import NATIVE, compile_c
from wqe_cases import NOP, make, mutate, reference, word_columns

from sigmatrace.export.mlx5_names import WqeOpcode
from sigmatrace.stages.kernels.wqe import decode_kernel, doorbell_kernel, walk_kernel
from sigmatrace.stages.wqe import DECODED

DECLARED = """
struct st_wqe { uint64_t raddr, size_bytes; uint32_t rkey, imm, remote_qpn; uint16_t dlid;
    uint8_t opcode, opmod, slots, sges, op, wr_opcode, signaled, solicited, fence, has_av, has_gid,
    dgid[16]; };
struct st_doorbell_value { uint32_t qpn; uint16_t index; };
uint32_t st_wqe_decode(const uint8_t *slots, uint32_t available, uint16_t index, uint32_t qpn,
                       uint32_t has_av, struct st_wqe *wqe);
struct st_doorbell_value st_doorbell_decode(uint64_t value);
"""
QPN = 0x00ABCD
BOTH = (  # what capture needs: fields of struct st_wqe, and names of `reference`
    *("raddr", "size_bytes", "rkey", "imm", "remote_qpn", "dlid", "opcode", "opmod", "slots"),
    *("sges", "op", "wr_opcode", "solicited", "fence", "has_av"),
)
Decoder = Any


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """The C decoder, alone, and its declarations."""
    target = tmp_path_factory.mktemp("decoder") / "libwqe.so"
    compile_c(NATIVE / "gpu" / "wqe.c", target, "-shared", "-fPIC")
    ffi = cffi.FFI()
    ffi.cdef(DECLARED)
    return ffi, ffi.dlopen(str(target))


def by_c(decoder: Decoder, raw: bytes, index: int, has_av: bool) -> dict[str, Any] | None:
    ffi, lib = decoder
    found = ffi.new("struct st_wqe *")
    taken = lib.st_wqe_decode(raw, len(raw) // 64, index & 0xFFFF, QPN, has_av, found)
    assert not taken or taken == found.slots
    own = {"signaled": found.signaled, "has_gid": found.has_gid, "dgid": bytes(found.dgid)}
    return {**{name: getattr(found, name) for name in BOTH}, **own} if taken else None


def by_numba(raw: bytes, index: int, has_av: bool) -> dict[str, int] | None:
    slots = np.frombuffer(raw, ">u4").astype(np.uint32)
    found = np.full(len(DECODED), 99, np.uint64)
    taken = decode_kernel(slots, len(raw) // 64, index, np.uint32(QPN), int(has_av), found)
    if not taken:
        return None
    assert taken == found[list(DECODED).index("slots")]
    return dict(zip(DECODED, found.tolist(), strict=True))


def agree(decoder: Decoder, raw: bytes, index: int, has_av: bool) -> dict[str, int] | None:
    wanted = reference(raw, index, QPN, has_av)
    if wanted is None:
        assert by_c(decoder, raw, index, has_av) is None
        assert by_numba(raw, index, has_av) is None
        return None
    dgid = b"".join(wanted[name].to_bytes(8, "big") for name in ("dgid_prefix", "dgid_interface"))
    own = {"signaled": wanted["ce"] >= 2, "has_gid": any(dgid), "dgid": dgid}
    assert by_c(decoder, raw, index, has_av) == {**{name: wanted[name] for name in BOTH}, **own}
    assert by_numba(raw, index, has_av) == {name: wanted[name] for name in DECODED}
    assert not set(wanted) - {*DECODED, *BOTH}
    return wanted


def test_whole_ones_are_decoded_alike(decoder: Decoder) -> None:
    rng = random.Random(1)
    kinds = set()
    for _ in range(4000):
        index, has_av = rng.getrandbits(20), rng.random() < 0.5
        raw = make(rng, index, QPN, has_av)
        found = agree(decoder, raw, index, has_av)
        assert found is not None
        kinds.add((found["opcode"], found["slots"], has_av))
    assert len({opcode for opcode, _, _ in kinds}) == 19
    assert {slots for _, slots, _ in kinds} >= {1, 2, 3, 4, 5}


def test_changed_and_short_ones_are_refused_alike(decoder: Decoder) -> None:
    rng = random.Random(2)
    refused = 0
    for _ in range(12000):
        index, has_av = rng.getrandbits(20), rng.random() < 0.5
        raw = mutate(rng, make(rng, index, QPN, has_av))
        short = raw[: 64 * rng.randint(1, len(raw) // 64)]
        refused += agree(decoder, short, index, has_av) is None
    assert 1000 < refused < 11000


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 1023), st.integers(0, 255))
def test_ones_with_one_other_byte_are_decoded_alike(decoder, seed, has_av, at, byte) -> None:
    raw = bytearray(make(random.Random(seed), seed, QPN, has_av))
    raw[at % len(raw)] = byte
    agree(decoder, bytes(raw), seed, has_av)


def test_every_opcode_is_the_same_to_all(decoder: Decoder) -> None:
    for opcode in range(256):
        for opmod in (0, 8, 9):
            for has_av in (False, True):
                head = bytes((opmod, 0, 7, opcode, *QPN.to_bytes(3, "big"), 7, 0, 1, 2, 0x4A))
                raw = head + b"imm!" + bytes(112)
                found = agree(decoder, raw, 7, has_av)
                assert found is not None
                named = found["op"] != NOP or found["wr_opcode"] != 255
                assert not named or opcode in list(WqeOpcode)


def nop(index: int, segments: int, slots: int) -> bytes:
    head = index.to_bytes(3, "big") + bytes(1) + QPN.to_bytes(3, "big") + bytes((segments,))
    return head + b"\xff" * (64 * slots - 8)


def test_a_nop_takes_the_slots_that_it_says(decoder: Decoder) -> None:
    for segments in range(64):
        slots = (segments + 3) // 4
        for there in {max(slots - 1, 1), max(slots, 1), slots + 1}:
            found = agree(decoder, nop(65535, segments, there), 65535, True)
            if segments == 0 or slots > there:
                assert found is None
            else:
                assert found is not None
                assert (found["slots"], found["sges"], found["has_av"]) == (slots, 0, 0)


def test_a_count_of_0_is_no_byte(decoder: Decoder) -> None:
    head = bytes((0, 0, 0, 0x0A)) + QPN.to_bytes(3, "big") + bytes((2, *bytes(8)))
    for count in (b"\0\0\0\0", b"\x80\0\0\0"):  # data, inline
        found = agree(decoder, head + count + bytes(44), 0, False)
        assert found is not None
        assert (found["sges"], found["size_bytes"]) == (1, 0)


@settings(max_examples=500, deadline=None)
@given(st.binary(min_size=64, max_size=512), st.integers(0, 63), st.integers(0, 255), st.booleans())
def test_any_bytes_are_decoded_alike(decoder, raw, segments, opcode, has_av) -> None:
    raw = bytearray(raw[: len(raw) // 64 * 64])
    raw[1:4] = b"\0\0" + bytes((opcode,))
    raw[4:8] = (QPN << 8 | segments).to_bytes(4, "big")
    agree(decoder, bytes(raw), 0x70000, has_av)


def test_doorbells_are_decoded_alike(decoder: Decoder) -> None:
    _, lib = decoder
    rng = random.Random(3)
    values = [rng.getrandbits(64) for _ in range(2000)]
    last = [rng.getrandbits(40) for _ in values]
    qpn, index = np.empty(2000, np.uint32), np.empty(2000, np.uint64)
    doorbell_kernel(np.array(values, np.uint64), np.array(last, np.uint64), qpn, index)
    for value, before, number, after in zip(values, last, qpn, index, strict=True):
        raw = value.to_bytes(8, "little")
        slots = -(-(raw[7] & 0x3F) // 4)
        told = lib.st_doorbell_decode(value)
        assert told.qpn == number == int.from_bytes(raw[4:7], "big")
        assert told.index == (int.from_bytes(raw[1:3], "big") + slots) % 65536
        assert int(after) % 65536 == told.index and 0 <= int(after) - before < 65536


def walked_by_c(decoder: Decoder, rows: list[dict[str, Any]]) -> list[int]:
    """Kinds of slots of doorbells, as ``st_gpu_record`` walks over them."""
    kinds: list[int] = []
    for row in rows:
        raw, at = row["raw"], 0
        while at < len(raw) // 64:
            found = by_c(decoder, raw[64 * at :], row["index"] + at, row["has_av"])
            taken = found["slots"] if found else 1
            kinds += [1] + [2] * (taken - 1) if found else [3]
            at += taken
    return kinds


def test_slots_are_walked_alike(decoder: Decoder) -> None:
    rng = random.Random(4)
    index, rows = 65500, []
    for number in range(600):
        wqes, has_av = [], number % 2 == 1
        at = index
        for _ in range(rng.randint(1, 6)):
            raw = make(rng, at, QPN, has_av)
            wqes.append(raw if rng.random() < 0.8 else mutate(rng, raw))
            at += len(raw) // 64
        rows.append({"index": index, "raw": b"".join(wqes), "has_av": has_av, "t_tsc": number})
        index = at
    sizes = [len(row["raw"]) // 64 for row in rows]
    words = word_columns(b"".join(row["raw"] for row in rows))
    size = words[0].size
    pair = np.repeat(np.arange(len(rows), dtype=np.int32) % 2, sizes)
    kind = np.zeros(size, np.uint8)
    columns = {name: np.zeros(size, dtype) for name, dtype in DECODED.items()}
    widths = (8, 4, 1)
    out = tuple(tuple(c for c in columns.values() if c.itemsize == width) for width in widths)
    walk_kernel(
        np.zeros(size, np.int32),
        np.repeat(np.arange(len(rows), dtype=np.uint64), sizes),
        np.arange(65500, 65500 + size, dtype=np.uint64),
        pair,
        np.array([QPN, QPN], np.uint32),
        np.array([0, 1], np.uint8),
        words,
        kind,
        out,
    )
    assert kind.tolist() == walked_by_c(decoder, rows)
    assert {1, 2, 3} == set(kind.tolist())
    raw = b"".join(row["raw"] for row in rows)
    ends = np.cumsum(sizes)
    for at in np.flatnonzero(kind == 1).tolist():
        number = int(np.searchsorted(ends, at, "right"))
        rest = raw[64 * at : 64 * int(ends[number])]
        wanted = reference(rest, 65500 + at, QPN, number % 2 == 1)
        assert wanted is not None
        for name, column in columns.items():
            assert column[at] == wanted[name], name
    for column in columns.values():
        assert not column[kind != 1].any()
