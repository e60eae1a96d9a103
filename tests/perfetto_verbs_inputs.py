"""A hand-made run with queue pairs, and rows of them, for the tests of the Perfetto exporter."""

from __future__ import annotations

from typing import Any

from sigmatrace.partition import Run
from sigmatrace.trace_format import Dir, Layer, Queue
from tests.factories import queue_pair
from tests.perfetto_inputs import BASE, run

GID_A, GID_B = "0a" * 16, "0b" * 16
ENDPOINTS = [
    queue_pair(0, 7, f"{GID_A}:11", f"{GID_B}:22"),
    queue_pair(0, 9, f"{GID_A}:12", "77:33"),
    queue_pair(0, 12, f"{GID_A}:11", f"{GID_B}:22", life=1),
    queue_pair(1, 7, f"{GID_B}:22", f"{GID_A}:11"),
    queue_pair(1, 8, "lid5/fe80:40"),
    queue_pair(1, 3),
]
CHANNELS = [
    {"proc": 0, "object": 7, "dir": Dir.OUT},
    {"proc": 1, "object": 7, "dir": Dir.IN},
    {"proc": 0, "object": 9, "dir": Dir.OUT},
    {"proc": 1, "object": 8, "dir": Dir.IN},
    {"proc": 0, "object": 7, "dir": Dir.OUT, "layer": Layer.UCT},
]
ROUTES = [
    {"src_proc": 0, "dst_proc": 1},
    {"src_proc": 0, "dst_proc": 1},
    {"src_proc": 0, "dst_proc": -1},
    {"src_proc": 0, "dst_proc": 1},
    {"src_proc": 0, "dst_proc": 0},
]
PORTS = [
    {"proc": 0, "object": 2, "device": "mlx5_0", "port": 1},
    {"proc": 1, "object": 2, "device": "mlx5_1", "port": 2, "place": "lid5/fe80"},
]
GIDS = [{"proc": 0, "port": 2, "gid": GID_A, "place": GID_A}]


def verbs_run(**more: Any) -> Run:
    """Return a run of two processes with queue pairs; ``more``: rows of other tables."""
    endpoints = [*ENDPOINTS, {"proc": 0, "object": 20, "layer": Layer.UCT, "type": "uct_ep"}]
    channels = [{"channel": n, "layer": Layer.VERBS, **row} for n, row in enumerate(CHANNELS)]
    routes = [{"channel": n, **row} for n, row in enumerate(ROUTES)]
    objects = {"channels": channels, "routes": routes, "ports": PORTS, "gids": GIDS}
    return run(endpoints=endpoints, **objects, **more)


def cqe(
    posted: int | None, t: int, position: int = 0, proc: int = 0, thing: int = 7, **more: Any
) -> dict[str, Any]:
    """Return a completion of the send queue; ``posted`` None: not known."""
    known = {"posted_ns": BASE + posted, "posted_tsc": 1} if posted is not None else {}
    row = {"t": t, "proc": proc, "object": thing, "position": position, "first": position}
    return {**row, "queue": Queue.SEND, "opcode": 1, **known, **more}


def request(
    t: int, position: int = 0, proc: int = 0, thing: int = 7, **more: Any
) -> dict[str, Any]:
    """Return a request of the send queue."""
    row = {"t": t, "proc": proc, "object": thing, "position": position, "queue": Queue.SEND}
    return {**row, **more}
