"""Names of libibverbs' opcodes, statuses and flags, as in ``infiniband/verbs.h``."""

from __future__ import annotations

from enum import IntEnum

from sigmatrace.trace_format import WcOpcode, WrOpcode

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
    """Return the name of the opcode of a ``request`` record."""
    return _of(WrOpcode, opcode)


def completion_text(opcode: int) -> str:
    """Return the name of the opcode of a ``cqe`` record."""
    return _of(WcOpcode, opcode)


def status_text(status: int) -> str:
    """Return the name of an ``ibv_wc_status``."""
    return _WC_STATUSES[status] if status < len(_WC_STATUSES) else f"status {status}"


def send_flags_text(flags: int) -> str:
    """Return the names of ``ibv_send_flags``, with blanks between them."""
    known = [name for k, name in enumerate(_SEND_FLAGS) if flags >> k & 1]
    unknown = flags >> len(_SEND_FLAGS) << len(_SEND_FLAGS)
    return " ".join([*known, f"0x{unknown:x}"] if unknown else known)


def _of(opcodes: type[IntEnum], opcode: int) -> str:
    return opcodes(opcode).name.lower() if opcode in list(opcodes) else f"opcode {opcode}"
