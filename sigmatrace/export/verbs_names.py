"""Names of libibverbs' opcodes, statuses and flags, as in ``infiniband/verbs.h``."""

from __future__ import annotations

from collections.abc import Mapping

_WR_OPCODES = {
    0: "rdma_write",
    1: "rdma_write_with_imm",
    2: "send",
    3: "send_with_imm",
    4: "rdma_read",
    5: "atomic_cmp_and_swp",
    6: "atomic_fetch_and_add",
    7: "local_inv",
    8: "bind_mw",
    9: "send_with_inv",
    10: "tso",
    11: "driver1",
    14: "flush",
    15: "atomic_write",
}
_WC_OPCODES = {
    0: "send",
    1: "rdma_write",
    2: "rdma_read",
    3: "comp_swap",
    4: "fetch_add",
    5: "bind_mw",
    6: "local_inv",
    7: "tso",
    8: "flush",
    9: "atomic_write",
    128: "recv",
    129: "recv_rdma_with_imm",
}
_WC_STATUSES = (
    "success",
    "loc_len_err",
    "loc_qp_op_err",
    "loc_eec_op_err",
    "loc_prot_err",
    "wr_flush_err",
    "mw_bind_err",
    "bad_resp_err",
    "loc_access_err",
    "rem_inv_req_err",
    "rem_access_err",
    "rem_op_err",
    "retry_exc_err",
    "rnr_retry_exc_err",
    "loc_rdd_viol_err",
    "rem_inv_rd_req_err",
    "rem_abort_err",
    "inv_eecn_err",
    "inv_eec_state_err",
    "fatal_err",
    "resp_timeout_err",
    "general_err",
    "tm_err",
    "tm_rndv_incomplete",
)
_SEND_FLAGS = ("fence", "signaled", "solicited", "inline", "ip_csum")


def request_text(opcode: int) -> str:
    """Return the name of an ``ibv_wr_opcode``."""
    return _named(_WR_OPCODES, opcode, "opcode")


def completion_text(opcode: int) -> str:
    """Return the name of the opcode of a ``cqe`` record."""
    return _named(_WC_OPCODES, opcode, "opcode")


def status_text(status: int) -> str:
    """Return the name of an ``ibv_wc_status``."""
    return _named(dict(enumerate(_WC_STATUSES)), status, "status")


def send_flags_text(flags: int) -> str:
    """Return the names of ``ibv_send_flags``, with blanks between them."""
    known = [name for k, name in enumerate(_SEND_FLAGS) if flags >> k & 1]
    unknown = flags >> len(_SEND_FLAGS) << len(_SEND_FLAGS)
    return " ".join([*known, f"0x{unknown:x}"] if unknown else known)


def _named(names: Mapping[int, str], key: int, what: str) -> str:
    return names.get(key, f"{what} {key}")
