"""Names of libibverbs' opcodes, statuses and flags, as in ``infiniband/verbs.h``."""

from __future__ import annotations

from enum import IntEnum

from sigmatrace.trace_format import WcOpcode, WrOpcode


class WcStatus(IntEnum):
    """``enum ibv_wc_status``: how a request ended."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


_SEND_FLAGS = ("fence", "signaled", "solicited", "inline", "ip_csum")


def request_text(opcode: int) -> str:
    """Return the name of the opcode of a ``request`` record."""
    return _of(WrOpcode, opcode)


def completion_text(opcode: int) -> str:
    """Return the name of the opcode of a ``cqe`` record."""
    return _of(WcOpcode, opcode)


def status_text(status: int) -> str:
    """Return the name of an ``ibv_wc_status``."""
    known = status in list(WcStatus)
    return WcStatus(status).name.lower() if known else f"status {status}"


def send_flags_text(flags: int) -> str:
    """Return the names of ``ibv_send_flags``, with blanks between them."""
    known = [name for k, name in enumerate(_SEND_FLAGS) if flags >> k & 1]
    unknown = flags >> len(_SEND_FLAGS) << len(_SEND_FLAGS)
    return " ".join([*known, f"0x{unknown:x}"] if unknown else known)


def _of(opcodes: type[IntEnum], opcode: int) -> str:
    return opcodes(opcode).name.lower() if opcode in list(opcodes) else f"opcode {opcode}"
