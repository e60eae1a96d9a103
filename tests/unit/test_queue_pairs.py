"""Which queue pair a row is about: number, process at the other end, GPU."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace.export.tables import named
from sigmatrace.queue_pairs import SEVERAL, described, other_ends
from sigmatrace.trace_format import Layer
from tests.factories import make_run, queue_pair, ucp_endpoints

GPU_PAIR = {"layer": Layer.MLX5DV, "type": "mlx5_qp"}


def test_the_other_end_is_the_process_whose_queue_pair_has_the_peers_name():
    run = make_run(
        processes=[{}, {}, {}],
        endpoints=[
            queue_pair(0, 1, "aa:11", "bb:22", **GPU_PAIR),
            queue_pair(1, 1, "bb:22", "aa:11"),  # of libibverbs
            queue_pair(0, 2, "aa:12", "cc:33"),  # nobody's
            queue_pair(0, 3, "aa:13"),  # unconnected
            queue_pair(0, 4, "aa:14", "dd:44"),  # two processes claim it
            queue_pair(1, 5, "dd:44"),
            queue_pair(2, 5, "dd:44"),
            queue_pair(1, 6, "bb:22", "aa:11", life=1),  # once more
            *ucp_endpoints(1, [(0, 9, 0)]),
        ],
    )
    assert other_ends(run).tolist() == [1, 0, -1, -1, SEVERAL, -1, -1, 0, -1, -1]


def test_rows_say_which_queue_pair_they_are_about():
    run = make_run(
        processes=[{}, {}],
        endpoints=[
            queue_pair(1, 1, "bb:22", "aa:11"),
            queue_pair(0, 7, "aa:11", "bb:22", **GPU_PAIR),
            queue_pair(0, 3, **GPU_PAIR),
        ],
        gpu_queues=[
            {"proc": 0, "object": 7, "qpn": 0x11, "gpu": 5},
            {"proc": 0, "object": 3, "qpn": 0x12},
        ],
    )
    rows = [(0, 3), (0, 7), (0, 99), (1, 1)]
    proc, thing = (np.array(x) for x in zip(*rows, strict=True))
    queues = pa.table({"proc": proc.astype("i4"), "object": thing.astype("u4"), "x": [1, 2, 3, 4]})
    table = described(queues, run)
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (0, 3, 0x12, -1, 0, 1),  # has no place
        (0, 7, 0x11, 1, 5, 2),
        (0, 99, 0, -1, 0, 3),
        (1, 1, 0x22, 0, 0, 4),
    ]
    people = named(run.with_results({"queues": table}), "queues")
    assert people.column("peer").to_pylist() == ["", "rank 1", "", "rank 0"]


@pytest.mark.parametrize("queues", [[], [{"proc": 0, "object": 7, "gpu": 5}]])
def test_no_rows_are_no_rows(queues):
    table = pa.table({"proc": pa.array([], "int32"), "object": pa.array([], "uint32")})
    found = described(table, make_run(processes=[{}], gpu_queues=queues))
    assert found.column_names == ["proc", "object", "qpn", "peer_proc", "gpu"]
    assert found.num_rows == 0
