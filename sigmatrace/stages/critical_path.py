"""Stage critical_path: what the last receive of the run depended on, message by message.

From the last event back. At a receive whose message could not have come before what its process did
last, not even as quickly as any of its pair, layer and class of sizes, the process depended on the
sender: the path goes over to the send. Otherwise (the receiver was late) it goes back along the
process. What a process did between two messages of the path is one step, work or not.

At one layer, the one with most messages (of equals the lowest number, the uppermost API). Messages
that were received before they were sent (clocks) lead nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.message_events import Events, Places, least_latencies
from sigmatrace.stages.pairs import Ints, labels_of, pairs_of
from sigmatrace.text import counted, time_text
from sigmatrace.trace_format import layer_text


@dataclass(frozen=True)
class Path:
    """The table, and its part of the ledger."""

    table: pa.Table
    ledger: Mapping[str, Any]


class CriticalPath(Stage):
    """Makes ``critical_path``."""

    name: ClassVar[str] = "critical_path"
    summary: ClassVar[SummaryKind] = "tables"
    requires: ClassVar[Columns] = {
        "message_pairs": {
            **{"src_proc": "i4", "dst_proc": "i4", "layer": "u1", "size_bytes": "u8"},
            **{"sizes_known": "bool", "send_ns": "i8", "receive_ns": "i8"},
        },
        "processes": {"label": "str"},
    }
    produces: ClassVar[Columns] = {"critical_path": STAGE_TABLES["critical_path"]}

    def survey(self, run: Run) -> Path:
        """Walk back from the last event."""
        pairs, layer = _of_one_layer(run.tables["message_pairs"])
        events = Events.of(pairs)
        hops = _hops(events, pairs)
        last = int(events.t_ns.argmax()) if pairs.num_rows else -1
        table = _table(events, pairs, hops, last)
        times = [column(table, f"{what}_ns") for what in ("begin", "end")]
        is_message = np.array(table["kind"].to_pylist(), object) == "message"
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
        return Path(table, ledger)

    def results(self, resolved: Path) -> Mapping[str, pa.Table]:
        """Return ``critical_path``."""
        return {"critical_path": resolved.table}

    def account(self, resolved: Path) -> Mapping[str, object]:
        """Return how much of the path messages are, and how much processes."""
        return resolved.ledger

    def lines(self, resolved: Path, run: Run) -> Sequence[str]:
        """Return how long the path is, and the process with most of it."""
        ledger = resolved.ledger
        total = ledger["message_ns"] + ledger["local_ns"]
        if not total:
            return []
        proc, ns = most_local(resolved.table)
        return [
            f"path       {layer_text(ledger['layer'])}: {time_text(total)} over "
            f"{counted(ledger['messages'], 'message')}; {100 * ledger['message_ns'] / total:.0f} % under "
            f"way, {100 * ns / total:.0f} % in {labels_of(run)[proc]}"
        ]


def most_local(table: pa.Table) -> tuple[int, int]:
    """Return the process that the path is in longest, and for how many ns; (0, 0): in none."""
    own = table.filter(
        pa.array([kind == "local" for kind in table["kind"].to_pylist()], pa.bool_())
    )
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
    taken, place = [], last
    while place >= 0 and (hop := hops.item(place)) >= 0:
        taken.append(hop)
        place = sends.item(events.message.item(hop))
    at = np.array(taken[::-1], np.int64)
    message = events.message[at]
    ends = {name: column(pairs, name)[message] for name in ("src_proc", "dst_proc", "size_bytes")}
    begin, end = (column(pairs, f"{what}_ns")[message] for what in ("send", "receive"))
    # A step in a process before each message, and one after the last; where it begins is known of
    # all but the first, which is as old as the first thing that its process did.
    if last < 0:
        return _steps(at, at, at, at, at, at)
    origin = int(np.flatnonzero(events.is_first[: place + 1])[-1])
    local_begin = np.append(events.t_ns[origin], end)
    local_end = np.append(begin, events.t_ns[last])
    proc = np.append(ends["src_proc"], _proc(events, pairs, last))
    return _steps(
        _woven(proc, ends["src_proc"]),
        _woven(proc, ends["dst_proc"]),
        _woven(local_begin, begin),
        _woven(local_end, end),
        _woven(np.zeros(at.size + 1, np.uint64), ends["size_bytes"]),
        np.arange(2 * at.size + 1) % 2,
    )


def _proc(events: Events, pairs: pa.Table, place: int) -> int:
    """Return the process of an event."""
    end = "dst_proc" if events.is_receive[place] else "src_proc"
    return int(column(pairs, end)[events.message[place]])


def _woven(one: Ints, other: Ints) -> Ints:
    """Return ``one[0], other[0], one[1], other[1], ...``."""
    woven = np.empty(one.size + other.size, one.dtype)
    woven[::2], woven[1::2] = one, other
    return woven


def _steps(
    from_proc: Ints, proc: Ints, begin_ns: Ints, end_ns: Ints, size_bytes: Ints, is_message: Ints
) -> pa.Table:
    """Return the rows of steps that take time, or are messages."""
    kept = np.flatnonzero((end_ns > begin_ns) | (is_message > 0))
    kinds = pa.array(["local", "message"], pa.string())
    return pa.table(
        {
            "step": np.arange(kept.size, dtype=np.int32),
            "kind": kinds.take(pa.array(is_message[kept])),
            "from_proc": from_proc[kept].astype(np.int32),
            "proc": proc[kept].astype(np.int32),
            "begin_ns": begin_ns[kept],
            "end_ns": end_ns[kept],
            "size_bytes": size_bytes[kept].astype(np.uint64),
        }
    )
