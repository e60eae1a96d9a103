"""What the firmware's commands say of a queue pair is in its object, field by field."""

from __future__ import annotations

from typing import Any

from firmware import INIT2INIT, INIT2RTR, RST2INIT, RTR2RTS, RTS2RTS, TO_RESET
from hooks_script import MEMORY, Hooks, connect, create, merged, modify

RNR_TIMEOUT, RETRY_COUNT, PRI_PORT, PKEY = 1 << 6, 1 << 12, 1 << 16, 1 << 4
DCI, UD = 5, 2
MADE = {
    "pd": 0x123456,
    "user_index": 0xABCDEF,
    "rq_type": 1,
    "srqn": 0x654321,
    "page_offset": 0x2A,
    "dc_access_key": 0x1122334455667788,
}
INIT = {"port": 1, "pkey_index": 0x0102, "rre": 1, "rwe": 0, "rae": 1}
READY_TO_RECEIVE = {
    "remote_qpn": 0x999,
    "rlid": 0x42,
    "mtu": 5,
    "log_msg_max": 30,
    "next_rcv_psn": 0x010203,
    "log_rra_max": 4,
    "min_rnr_nak": 12,
    "sl": 9,
    "stat_rate": 3,
    "mlid": 0x55,
    "src_addr_index": 3,
    "tclass": 0xA5,
    "hop_limit": 64,
    "flow_label": 0xF0E1D,
    "dscp": 0x2E,
    "udp_sport": 0xC0DE,
    "eth_prio": 5,
    "rmac": 0x0102030405A6,
}
READY_TO_SEND = {
    "next_send_psn": 0x0A0B0C,
    "ack_timeout": 20,
    "retry_count": 7,
    "rnr_retry": 6,
    "log_sra_max": 3,
}
MADE_SAID = {
    "pdn": 0x123456,
    "user_index": 0xABCDEF,
    "rq_type": 1,
    "srqn": 0x654321,
    "page_offset": 0x2A,
    "dc_access_key": 0x1122334455667788,
    "send_dbr_mode": 0,
    "log_sq_size": 6,
    "cqn_snd": 0xABCDE,
    "cqn_rcv": 0x54321,
}
PATH_SAID = {
    "path_mtu_bytes": 4096,
    "log_msg_max": 30,
    "sl": 9,
    "stat_rate": 3,
    "mlid": 0x55,
    "sgid_index": 3,
    "traffic_class": 0xA5,
    "hop_limit": 64,
    "flow_label": 0xF0E1D,
    "dscp": 0x2E,
    "udp_sport": 0xC0DE,
    "eth_prio": 5,
    "dmac": bytes.fromhex("0102030405a6"),
}
REQUESTS_SAID = {"timeout": 20, "retry_cnt": 7, "rnr_retry": 6, "max_rd_atomic": 8}
CONNECTION_SAID = {
    "pkey_index": 0x0102,
    "access": 4 | 8,
    "rq_psn": 0x010203,
    "sq_psn": 0x0A0B0C,
    "max_dest_rd_atomic": 16,
    "min_rnr_timer": 12,
}


def life(pair: int = 0) -> list[str]:
    """All changes of state, with all fields."""
    return [
        modify(pair, RST2INIT, **INIT),
        modify(pair, INIT2RTR, **READY_TO_RECEIVE),
        modify(pair, RTR2RTS, **READY_TO_SEND),
    ]


def described(hooks: Hooks, *script: str) -> list[dict[str, Any]]:
    """Objects of queue pairs that a script leaves."""
    return merged(hooks(["init", "uar 0", *MEMORY, *script]).rank(), "mlx5_qp")


def test_each_field_of_a_connected_queue_pair(hooks: Hooks) -> None:
    (pair,) = described(hooks, create(**MADE), *life())
    wanted = MADE_SAID | PATH_SAID | REQUESTS_SAID | CONNECTION_SAID
    assert {key: pair.get(key) for key in wanted} == wanted
    assert (pair["dest_qpn"], pair["dlid"], pair["state"]) == (0x999, 0x42, "rts")
    assert not {"qkey", "no_sq", "log_rq_size", "log_rq_stride", "grh"} & set(pair)


def test_a_dci_has_no_field_of_a_responder(hooks: Hooks) -> None:
    (pair,) = described(hooks, create(**MADE, st=DCI), *life())
    wanted = MADE_SAID | PATH_SAID | REQUESTS_SAID | {"pkey_index": 0x0102}
    assert {key: pair.get(key) for key in wanted} == wanted
    assert not (set(CONNECTION_SAID) - {"pkey_index"}) & set(pair)


def test_a_datagram_has_a_key_and_no_path(hooks: Hooks) -> None:
    script = [
        create(st=UD, rq_type=0, log_rq_size=4, log_rq_stride=2, no_sq=1),
        modify(0, RST2INIT, port=1, q_key=0x11111111),
        modify(0, INIT2RTR, **READY_TO_RECEIVE),
        modify(0, RTR2RTS, **READY_TO_SEND),
    ]
    (pair,) = described(hooks, *script)
    wanted = {"qkey": 0x11111111, "sq_psn": 0x0A0B0C, "no_sq": 1, "rq_type": 0}
    wanted |= {"log_rq_size": 4, "log_rq_stride": 2}
    assert {key: pair.get(key) for key in wanted} == wanted
    assert not (set(PATH_SAID) | set(REQUESTS_SAID) | {"dest_qpn"}) & set(pair)


def test_the_next_life_is_described_by_its_own_commands(hooks: Hooks) -> None:
    again = [modify(0, TO_RESET), *connect(0, remote_qpn=1, rlid=2, mtu=3)]
    first, second = described(hooks, create(**MADE), *life(), *again)
    assert {key: second.get(key) for key in MADE_SAID} == MADE_SAID
    assert (first["path_mtu_bytes"], second["path_mtu_bytes"]) == (4096, 1024)
    assert (first["sl"], second["sl"], second["pkey_index"]) == (9, 0, 0)
    assert "udp_sport" not in second


def test_optional_fields_are_those_that_the_mask_names(hooks: Hooks) -> None:
    later = {"min_rnr_nak": 1, "retry_count": 2, "rnr_retry": 1, "ack_timeout": 3}
    script = [
        create(**MADE),
        modify(0, RST2INIT, **INIT),
        modify(0, INIT2INIT, opt_param_mask=PKEY | PRI_PORT, pkey_index=7, port=2),
        modify(0, INIT2RTR, **READY_TO_RECEIVE),
        modify(0, RTR2RTS, **READY_TO_SEND),
        modify(0, RTS2RTS, opt_param_mask=RNR_TIMEOUT | RETRY_COUNT, **later),
    ]
    (pair,) = described(hooks, *script)
    assert (pair["min_rnr_timer"], pair["retry_cnt"]) == (1, 2)
    assert (pair["rnr_retry"], pair["timeout"]) == (6, 20)
    assert (pair["pkey_index"], pair["port"], pair["access"]) == (7, 2, 4 | 8)
