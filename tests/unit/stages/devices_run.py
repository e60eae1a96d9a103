"""A hand-made run with something at every level: queue pairs at two layers, GPUs, NICs, others."""

from __future__ import annotations

from typing import NamedTuple

from sigmatrace.partition import Run
from sigmatrace.trace_format import Layer
from tests.factories import make_run, queue_pair


class End(NamedTuple):
    """An endpoint, and what it is called at each level ("" = not known)."""

    proc: int
    object: int
    name: str
    layer: Layer
    qp: str
    gpu: str
    nic: str


HOSTS = ["a", "a", "b", "c"]
GPU_QP = {"layer": Layer.MLX5DV, "type": "mlx5_qp"}
ENDS = [
    End(0, 7, "ib:aa:11", Layer.VERBS, "rank 0 QP 0x11", "rank 0 GPU 3 (H)", "m0 port 1 (a)"),
    End(1, 7, "ib:bb:22", Layer.VERBS, "rank 1 QP 0x22", "", "m1 port 2 (a)"),
    End(0, 8, "ib:aa:12", Layer.MLX5DV, "rank 0 QP 0x12", "rank 0 GPU 3 (H)", "m0 port 1 (a)"),
    End(2, 9, "ib:cc:33", Layer.MLX5DV, "rank 2 QP 0x33", "rank 2 GPU 1 (H)", "cc (b)"),
    End(1, 3, "ofi:1", Layer.OFI, "rank 1 ofi:1", "", ""),
    End(2, 3, "ofi:2", Layer.OFI, "rank 2 ofi:2", "", ""),
    End(0, 3, "", Layer.OFI, "rank 0 object 3", "rank 0 GPU 3 (H)", ""),
]
"""Queue pairs 0 and 1 are connected, and so are 2 and 3."""


def devices_run() -> Run:
    """Return the run; rank 0 uses one GPU, ranks 1 and 2 use two, rank 3 has no endpoint."""
    return make_run(
        processes=[{"host": host, "layers": "ofi,verbs,mlx5dv"} for host in HOSTS],
        endpoints=[
            queue_pair(0, 7, "aa:11", "bb:22"),
            queue_pair(1, 7, "bb:22", "aa:11"),
            queue_pair(0, 8, "aa:12", "cc:33", **GPU_QP),
            queue_pair(2, 9, "cc:33", "aa:12", **GPU_QP),
            *(
                {"proc": end.proc, "object": end.object, "layer": Layer.OFI, "local": end.name}
                for end in ENDS[4:]
            ),
        ],
        ports=[
            {"proc": 0, "object": 2, "device": "m0", "port": 1},
            {"proc": 1, "object": 2, "device": "m0", "port": 1},
            {"proc": 1, "object": 4, "device": "m1", "port": 2},
        ],
        gids=[
            {"proc": 0, "port": 2, "gid": "aa", "place": "aa"},
            {"proc": 1, "port": 4, "gid": "bb", "place": "bb"},
        ],
        gpus=[
            {"proc": 0, "object": 40, "ordinal": 3, "name": "H"},
            *(
                {"proc": proc, "object": 50 + k, "ordinal": k, "name": "H"}
                for proc in (1, 2)
                for k in (0, 1)
            ),
        ],
        gpu_queues=[
            {"proc": 0, "object": 8, "qpn": 0x12, "gpu": 40},
            {"proc": 2, "object": 9, "qpn": 0x33, "gpu": 51},
        ],
    )
