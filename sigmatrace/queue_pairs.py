"""What tells queue pairs apart for people: number, process at the other end, GPU."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Run, column
from sigmatrace.schema import Columns
from sigmatrace.trace_format import QUEUE_PAIR_LAYERS

SEVERAL = -2
"""Of ``other_ends``: several processes have used the name."""

DESCRIBED: Columns = {
    "endpoints": {
        **{"proc": "i4", "object": "u4", "layer": "u1"},
        **{"local": "str", "peer": "str", "qpn": "u4"},
    },
    "gpu_queues": {"proc": "i4", "object": "u4", "qpn": "u4", "gpu": "u4"},
}
"""Columns that are read here."""


def other_ends(run: Run) -> NDArray[np.int32]:
    """Return of each row of ``endpoints`` the process whose queue pair has the name of its peer.

    Returns:
        ``(e,)`` i4: -1 where it is not known (also of those without a peer of their own: DCI, UD),
        or ``SEVERAL``.
    """
    rows = np.flatnonzero(np.isin(run.column("endpoints", "layer"), QUEUE_PAIR_LAYERS))
    table = run.tables["endpoints"].select(["proc", "local", "peer"]).take(rows)
    procs, local, peer = (table.column(x).to_pylist() for x in table.column_names)
    owner: dict[str, int] = {}
    for name, proc in zip(local, procs, strict=True):
        if name:
            owner[name] = proc if owner.get(name, proc) == proc else SEVERAL
    found = np.full(run.tables["endpoints"].num_rows, -1, np.int32)
    found[rows] = [owner.get(name, -1) for name in peer]
    return found


def numbers(run: Run, proc: NDArray[np.int32], thing: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the numbers ``(n,)`` u4 of queue pairs on their NICs, 0 where one is not known."""
    own = _cells(run, "endpoints", "qpn", proc, thing)
    return np.where(own > 0, own, _cells(run, "gpu_queues", "qpn", proc, thing))


def described(queues: pa.Table, run: Run) -> pa.Table:
    """Return a table with ``qpn``, ``peer_proc`` and ``gpu`` behind its ``proc`` and ``object``.

    Args:
        queues: Its first two columns are ``proc`` and ``object``.
        run: The run with the tables of ``DESCRIBED``.
    """
    own = column(queues, "proc"), column(queues, "object")
    at = _places(run, "endpoints", *own)
    peer = np.append(np.maximum(other_ends(run), -1), -1).astype(np.int32)[at]
    qpn, gpu = numbers(run, *own), _cells(run, "gpu_queues", "gpu", *own)
    for place, (name, values) in enumerate((("qpn", qpn), ("peer_proc", peer), ("gpu", gpu)), 2):
        queues = queues.add_column(place, name, pa.array(values))
    return queues


def _places(
    run: Run, table: str, proc: NDArray[np.int32], thing: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Return the row of each object in a table, -1 where it has none."""
    keys = object_keys(run.column(table, "proc"), run.column(table, "object"))
    order = np.argsort(keys, kind="stable")
    found: NDArray[np.int64] = np.append(order, -1)[find_objects(keys[order], proc, thing)]
    return found


def _cells(
    run: Run, table: str, name: str, proc: NDArray[np.int32], thing: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return a column u4 of the rows of objects, 0 where an object has none."""
    values = np.append(run.column(table, name), 0).astype(np.uint32)
    found: NDArray[np.uint32] = values[_places(run, table, proc, thing)]
    return found
