"""Stage critical_path: what the last receive of the run depended on, message by message.

From the last event back. At a receive whose message could not have come before what its process did
last, not even as quickly as any of its pair, layer and class of sizes, the process depended on the
sender: the path goes over to the send. Otherwise (the receiver was late) it goes back along the
process. What a process did between two messages of the path is one step, work or not.

At one layer, the one with most messages (of equals the lowest number, the uppermost API). Messages
that were received before they were sent (clocks) lead nowhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.message_events import Events, Places, least_latencies
from sigmatrace.stages.pairs import Ints, labels_of, pairs_of
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.text import counted, time_text
from sigmatrace.trace_format import layer_text


class CriticalPath(TableStage):
    """Makes ``critical_path``."""

    name: ClassVar[str] = "critical_path"
    requires: ClassVar[Columns] = {
        "message_pairs": {
            **{"src_proc": "i4", "dst_proc": "i4", "layer": "u1", "size_bytes": "u8"},
            **{"sizes_known": "bool", "send_ns": "i8", "receive_ns": "i8"},
        },
        "processes": {"label": "str"},
    }
    produces: ClassVar[Columns] = {"critical_path": STAGE_TABLES["critical_path"]}

    def survey(self, run: Run) -> Told:
        """Walk back from the last event."""
        pairs, layer = _of_one_layer(run.tables["message_pairs"])
        events = Events.of(pairs)
        hops = _hops(events, pairs)
        last = int(events.t_ns.argmax()) if pairs.num_rows else -1
        table = _table(events, pairs, hops, last)
        times = [column(table, f"{what}_ns") for what in ("begin", "end")]
        is_message = are_messages(table)
        parts = {
            "message_ns": int((times[1] - times[0])[is_message].sum()),
            "local_ns": int((times[1] - times[0])[~is_message].sum()),
        }
        whole = int(times[1][-1] - times[0][0]) if table.num_rows else 0
        same = {"name": "steps = whole path", "left": list(parts.values()), "right": whole}
        ledger = {
            "layer": layer,
            "messages": int(is_message.sum()),
            **parts,
            "left_out_of_other_layers": run.tables["message_pairs"].num_rows - pairs.num_rows,
            "balance": [same],
        }
        return Told(table, ledger)

    def lines(self, resolved: Told, run: Run) -> Sequence[str]:
        """Return how long the path is, and the process with most of it."""
        ledger = resolved.ledger
        total = ledger["message_ns"] + ledger["local_ns"]
        if not total:
            return []
        proc, ns = most_local(resolved.table)
        under_way, local = (round(100 * one / total) for one in (ledger["message_ns"], ns))
        return [
            f"path       {layer_text(ledger['layer'])}: {time_text(total)} over "
            f"{counted(ledger['messages'], 'message')}; {under_way} % under way, {local} % in "
            f"{labels_of(run)[proc]}"
        ]


def are_messages(table: pa.Table) -> NDArray[np.bool_]:
    """Return which steps of ``critical_path`` are messages under way, ``(n,)``."""
    found: NDArray[np.bool_] = pc.equal(table["kind"], "message").to_numpy()
    return found


def most_local(table: pa.Table) -> tuple[int, int]:
    """Return the process that the path is in longest, and for how many ns; (0, 0): in none."""
    own = table.filter(pa.array(~are_messages(table)))
    ns = column(own, "end_ns") - column(own, "begin_ns")
    procs, code = np.unique(column(own, "proc"), return_inverse=True)
    total = np.zeros(procs.size, np.int64)
    np.add.at(total, code, ns)
    return (int(procs[total.argmax()]), int(total.max())) if procs.size else (0, 0)


def _of_one_layer(pairs: pa.Table) -> tuple[pa.Table, int]:
    """Return the messages of the layer with most of them, and that layer; 0: there are none."""
    layers = column(pairs, "layer")
    count = np.bincount(layers, minlength=1)
    layer = int(count.argmax())
    if count[layer] == layers.size:
        return pairs, layer
    return pairs.filter(pa.array(layers == layer)), layer


def _hops(events: Events, pairs: pa.Table) -> Places:
    """Return by event the place of its process's last one that depended on another; -1: none."""
    send, receive = (column(pairs, f"{what}_ns") for what in ("send", "receive"))
    before, is_known = events.before_receives()
    least = least_latencies(pairs, pairs_of(pairs), receive - send)
    depends = (send <= receive) & (~is_known | (before - send < least))
    del before, least
    return events.last_of(events.is_receive & depends[events.message])


def _table(events: Events, pairs: pa.Table, hops: Places, last: int) -> pa.Table:
    """Return the path, from its begin to the event at place ``last``."""
    sends = np.empty(pairs.num_rows, hops.dtype)
    sends[events.message[~events.is_receive]] = np.flatnonzero(~events.is_receive)
    taken, place = array("q"), last
    while place >= 0 and (hop := hops.item(place)) >= 0:
        taken.append(hop)
        place = sends.item(events.message.item(hop))
    if last < 0:
        return _steps(*[np.zeros(0, np.int64)] * 6)
    origin = int(np.flatnonzero(events.is_first[: place + 1])[-1])
    own = "dst_proc" if events.is_receive[last] else "src_proc"
    last_proc = column(pairs, own)[events.message[last]]
    message = events.message[np.frombuffer(taken, np.int64)[::-1]]
    src, dst, begin, end, size = (
        column(pairs, name)[message]
        for name in ("src_proc", "dst_proc", "send_ns", "receive_ns", "size_bytes")
    )
    # A step in a process before each message, and one after the last. Of the first it is not known
    # since when it lasted, but by the first thing that its process did.
    since, until = np.append(events.t_ns[origin], end), np.append(begin, events.t_ns[last])
    kept = _woven(until > since, np.ones(message.size, bool))
    proc = np.append(src, last_proc).astype(np.int32)
    return _steps(
        np.arange(kept.size)[kept] % 2,
        *(_woven(proc, one)[kept] for one in (src, dst)),
        *(_woven(*both)[kept] for both in ((since, begin), (until, end))),
        _woven(np.zeros_like(size, shape=proc.size), size)[kept],
    )


def _woven(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return ``one[0], other[0], one[1], other[1], ...``."""
    woven = np.empty(one.size + other.size, one.dtype)
    woven[::2], woven[1::2] = one, other
    return woven


def _steps(is_message: Ints, *columns: NDArray[Any]) -> pa.Table:
    """Return the table; columns from ``from_proc`` to ``size_bytes``."""
    kinds = pa.array(["local", "message"], pa.string()).take(pa.array(is_message))
    step = np.arange(is_message.size, dtype=np.int32)
    names = ("from_proc", "proc", "begin_ns", "end_ns", "size_bytes")
    types = STAGE_TABLES["critical_path"]
    rest = {n: one.astype(types[n], copy=False) for n, one in zip(names, columns, strict=True)}
    return pa.table({"step": step, "kind": kinds, **rest})
