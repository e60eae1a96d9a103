"""Stage wqe: what each kind of work queue element holds, written out by hand."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from sigmatrace.export.mlx5_names import WqeCompletion, WqeFence, WqeOpcode
from sigmatrace.stages.wqe import DECODED, Wqe
from sigmatrace.trace_format import Layer, Op, WqeKind
from tests.factories import make_partition, make_run

RC, DCI, QPN = 7, 8, 0x55
PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
VECTOR = {
    **{"has_av": 1, "dc_key": 0x1122334455667788, "remote_qpn": 0x123456, "sl": 5, "dlid": 0xC001},
    **{"rmac": 0x020000ABCDEF, "tclass": 106, "hop_limit": 64, "flow_label": 0x12345},
    **{"dgid_prefix": 0xFE80 << 48, "dgid_interface": 0xFFFF_0A00_0001},
}
TARGET = {"raddr": 1 << 40, "rkey": 0xAB}
DATA = {"lkey": 0xCD, "laddr": 1 << 41, "sges": 1}


def data(size: int) -> bytes:
    return struct.pack(">IIQ", size, 0xCD, 1 << 41)


def target() -> bytes:
    return struct.pack(">QII", 1 << 40, 0xAB, 0)


def vector(full: bool) -> bytes:
    short = struct.pack(">QIBBH", 0x1122334455667788, 0x123456 | full << 31, 0xA5, 0x7F, 0xC001)
    label = 1 << 30 | 3 << 20 | 0x12345  # a GRH, and index 3 of the port's own GIDs
    rest = struct.pack(">4x6sBBI", bytes.fromhex("020000abcdef"), 106, 64, label)
    return short + full * (rest + bytes.fromhex("fe80000000000000 0000ffff0a000001"))


CASES = {
    "write": (RC, 0x08, 0, target() + data(100), {**TARGET, **DATA, "size_bytes": 100}),
    "write of two segments": (
        *(RC, 0x08, 0, target() + data(100) + data(0)),
        {**TARGET, **DATA, "size_bytes": 100, "sges": 2},
    ),
    "inline, then data": (
        *(RC, 0x0A, 0, struct.pack(">I12s", 1 << 31 | 12, b"x" * 12) + data(100)),
        {**DATA, "size_bytes": 112, "inline_bytes": 12, "sges": 2},
    ),
    "write with immediate": (
        *(RC, 0x09, 0, target() + data(4)),
        {**TARGET, **DATA, "size_bytes": 4, "imm": 0xBEEF},
    ),
    "fetch and add": (
        *(RC, 0x12, 0, target() + struct.pack(">QQ", 3, 0) + data(8)),
        {**TARGET, **DATA, "size_bytes": 8, "atomic_operand": 3},
    ),
    "compare and swap": (
        *(RC, 0x11, 0, target() + struct.pack(">QQ", 2**63, 5) + data(8)),
        {**TARGET, **DATA, "size_bytes": 8, "atomic_operand": 2**63, "atomic_compare": 5},
    ),
    "masked compare and swap, 8 bytes": (
        *(RC, 0x14, 9, target() + struct.pack(">QQQQ", 1, 2, 3, 2**64 - 1) + data(8)),
        {
            **{**TARGET, **DATA, "size_bytes": 8, "atomic_operand": 1, "atomic_compare": 2},
            **{"atomic_operand_mask": 3, "atomic_compare_mask": 2**64 - 1},
        },
    ),
    "masked compare and swap, 4 bytes": (
        *(RC, 0x14, 8, target() + struct.pack(">IIII", 1, 2, 3, 2**32 - 1) + data(4)),
        {
            **{**TARGET, **DATA, "size_bytes": 4, "atomic_operand": 1, "atomic_compare": 2},
            **{"atomic_operand_mask": 3, "atomic_compare_mask": 2**32 - 1},
        },
    ),
    "masked fetch and add, 4 bytes": (
        *(RC, 0x15, 8, target() + struct.pack(">IIQ", 7, 2**31, 2**64 - 1) + data(4)),
        {**TARGET, **DATA, "size_bytes": 4, "atomic_operand": 7, "atomic_compare": 2**31},
    ),
    "masked fetch and add, 8 bytes": (
        *(RC, 0x15, 9, target() + struct.pack(">QQ", 7, 2**63) + data(8)),
        {**TARGET, **DATA, "size_bytes": 8, "atomic_operand": 7, "atomic_compare": 2**63},
    ),
    "read by a DCI, full vector": (
        *(DCI, 0x10, 0, vector(True) + target() + data(64)),
        {**VECTOR, **TARGET, **DATA, "size_bytes": 64},
    ),
    "read by a DCI, short vector": (
        *(DCI, 0x10, 0, vector(False) + target() + data(64)),
        {
            **{name: VECTOR[name] for name in ("has_av", "dc_key", "remote_qpn", "sl", "dlid")},
            **{**TARGET, **DATA, "size_bytes": 64},
        },
    ),
    "NOP of two slots, on a DCI": (DCI, 0x00, 0, b"\xff" * 64, {}),
    "WAIT": (
        *(DCI, 0x0F, 0, struct.pack(">8xII", 77, 0xFF000000 | 0x400)),
        {"wait_index": 77, "wait_cqn": 0x400},
    ),
    "DUMP": (DCI, 0x23, 0, data(1), {"lkey": 0xCD, "laddr": 1 << 41}),
    "UMR": (RC, 0x25, 0, b"\xff" * 48, {"imm": 0xBEEF}),
    "invalidation": (RC, 0x1B, 0, b"", {"imm": 0xBEEF}),
}
OPS = {
    **{0x00: Op.NOP, 0x08: Op.PUT, 0x09: Op.PUT_DATA, 0x0A: Op.SEND, 0x0F: Op.NOP, 0x10: Op.GET},
    **{0x1B: Op.INVALIDATE, 0x23: Op.NOP, 0x25: Op.BIND},
    **dict.fromkeys((0x11, 0x12, 0x14, 0x15), Op.ATOMIC_FETCH),
}


def decoded(qp: int, raw: bytes) -> list[dict[str, int]]:
    """The rows of the slots, as the stage makes them."""
    run = make_run(
        processes=[{}],
        endpoints=[
            {"object": RC, "layer": Layer.MLX5DV, "qpn": QPN},
            {"object": DCI, "layer": Layer.MLX5DV, "qpn": QPN, "av": DCI},
        ],
    )
    slots = [struct.unpack_from("<8Q", raw, at) for at in range(0, len(raw), 64)]
    rows = [
        {"index": k, "qp": qp, **{f"w{n}": word for n, word in enumerate(words)}}
        for k, words in enumerate(slots)
    ]
    stage = Wqe()
    part = stage.apply(make_partition(wqes=rows), stage.survey(run))
    table = part.tables["wqes"]
    assert {name: str(table.schema.field(name).type) for name in DECODED} == {
        name: {"u8": "uint64", "u4": "uint32", "u1": "uint8"}[kind]
        for name, kind in DECODED.items()
    }
    found: list[dict[str, int]] = table.select([*DECODED, "decoded"]).to_pylist()
    return found


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_element(case: str) -> None:
    qp, opcode, opmod, body, wanted = CASES[case]
    segments = 1 + len(body) // 16
    flags = 4 << 5 | 3 << 2 | 1 << 1
    head = struct.pack(
        ">BHBIBHBI", opmod, 0, opcode, QPN << 8 | segments, 0xEE, 0x1234, flags, 0xBEEF
    )
    raw = head + body
    raw += b"\x77" * (-len(raw) % 64)
    always = {"opcode": opcode, "opmod": opmod, "op": OPS[opcode], "slots": len(raw) // 64}
    always |= {"stream": 0x1234, "solicited": 1}
    always |= {"fence": WqeFence.FENCE_AND_SMALL_FENCE, "ce": WqeCompletion.ALWAYS_WITH_EVENT}
    first, *further = decoded(qp, raw)
    expected = {**dict.fromkeys(DECODED, 0), **always, **wanted, "decoded": WqeKind.FIRST}
    assert first == expected
    for row in further:
        assert row == {**dict.fromkeys(DECODED, 0), "decoded": WqeKind.FURTHER}


def test_what_is_cut_off_is_not_made_up() -> None:
    head = struct.pack(">II8x", 0x0F, QPN << 8 | 1)
    (row,) = decoded(RC, head + b"\x11" * 48)  # a WAIT of its control segment alone
    assert (row["opcode"], row["wait_index"], row["wait_cqn"]) == (WqeOpcode.WAIT, 0, 0)
    for body in (target(), target() + data(8)):  # without operands: no atomic
        head = struct.pack(">II8x", 0x14, QPN << 8 | 1 + len(body) // 16)
        row, *_ = decoded(RC, head + body + bytes(-len(head + body) % 64))
        assert row == {**dict.fromkeys(DECODED, 0), "decoded": WqeKind.INVALID}


def test_each_column_is_explained() -> None:
    _, _, text = PAGE.read_text().partition("| Column of `wqes` |")
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("\n\n")[0], re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted([*DECODED, "decoded"])
