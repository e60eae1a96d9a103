"""Lines of the driver's scripts that set a queue pair up, and what the trace says of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firmware import CREATE_QP, INIT2RTR, RST2INIT, RTR2RTS, command

Hooks = Callable[..., Any]
NC, DEDICATED = 1, 0x80000000
FIRST_QPN, FIRST_UMEM, FIRST_PAGE = 0x500, 100, 8
ERRNO_OF_SUCCESS = 77
WAYS = [("link", True), ("link", False), ("dlsym", True), ("dlvsym", True)]


def merged(rank: Any, kind: str) -> list[dict[str, Any]]:
    """The objects of a type, each with all that was said of it."""
    found: dict[int, dict[str, Any]] = {}
    for item in rank.objects_of(kind):
        found[item["id"]] = found.get(item["id"], {}) | item
    return list(found.values())


def create(page: int = FIRST_PAGE, **more: int) -> str:
    """A queue pair whose ring and record are in the first two memories."""
    fields = {
        "uar_page": page,
        "rq_type": 3,
        "log_sq_size": 6,
        "wq_umem_valid": 1,
        "wq_umem_id": FIRST_UMEM,
        "dbr_umem_valid": 1,
        "dbr_umem_id": FIRST_UMEM + 1,
        "cqn_snd": 0xABCDE,
        "cqn_rcv": 0x54321,
    }
    return "create 0 0 " + command(CREATE_QP, **(fields | more))


def modify(pair: int, opcode: int, **fields: int) -> str:
    """A command that changes the state of the n-th queue pair."""
    return f"modify {pair} 0 " + command(opcode, number=FIRST_QPN + pair, **fields)


def connect(pair: int, **path: int) -> list[str]:
    """From reset to ready."""
    return [
        modify(pair, RST2INIT, port=path.pop("port", 1)),
        modify(pair, INIT2RTR, **path),
        modify(pair, RTR2RTS),
    ]


MEMORY = ["umem 8192 0", "umem 4096 0"]
