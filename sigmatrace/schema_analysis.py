"""Tables of the analyses, a part of ``schema.py``: what each means stands in docs/analysis.md.

Levels are "qp", "gpu", "nic", "rank" and "node". ``layer`` is that of ``trace_format.Layer``:
one message may be seen at several, so layers are never added up. Of processes whose rank is not
known the label stands in.
"""

from __future__ import annotations

ANALYSIS_TABLES: dict[str, dict[str, str]] = {
    # clock_hosts: one row per clock (of a host, or of a process that is fitted alone), where clocks
    # were to be corrected by messages; docs/clocks.md. `offset_ns` is added in the middle of its
    # messages' time, and `drift_ppm` in us a second, to be on the clock of `reference`; both are
    # off by at most `bound_ns`, all in all; inf where it is not `tied` to the main reference.
    # `steps`: how often it steps, or drifts otherwise from there on. `violations_*`: of
    # `messages`, those received before they were sent.
    "clock_hosts": {
        "host": "str",
        "reference": "str",
        "offset_ns": "i8",
        "drift_ppm": "f8",
        "bound_ns": "f8",
        "tied": "bool",
        "steps": "i4",
        "messages": "u8",
        "violations_before": "u8",
        "violations_after": "u8",
    },
    # communication: one row per level, layer and pair of ends, for traffic that operations initiate
    # (sends, puts, gets, atomics; gets from the end that is read). src, dst: "" where an end is not
    # known. `mean_bytes`: of operations of known size, null where there are none.
    "communication": {
        "level": "str",
        "layer": "u1",
        "src": "str",
        "dst": "str",
        "operations": "u8",
        "size_bytes": "u8",
        "size_unknown": "u8",
        "mean_bytes": "f8",
    },
    # imbalance: one row per level and layer, of what goes from one member to another. Ratios are
    # max : min (1 where both are equal, inf where only the least is 0), of pairs max : mean over
    # the pairs that have traffic and two different ends that are known ("" and 1 without any).
    "imbalance": {
        "level": "str",
        "layer": "u1",
        "members": "i4",
        "egress_max": "str",
        "egress_max_bytes": "u8",
        "egress_min": "str",
        "egress_min_bytes": "u8",
        "egress_ratio": "f8",
        "ingress_max": "str",
        "ingress_max_bytes": "u8",
        "ingress_min": "str",
        "ingress_min_bytes": "u8",
        "ingress_ratio": "f8",
        "pair_src": "str",
        "pair_dst": "str",
        "pair_max_bytes": "u8",
        "pair_mean_bytes": "f8",
        "pair_ratio": "f8",
    },
    # links: one row per pair of processes and layer, of operations as in `communication`.
    # `first_ns`, `last_ns`: begin of the first slot of `slot_ns` in which one began, and end of the
    # last one. `idle_ns`: slots between them in which none began; `longest_idle_ns`: the most that
    # follow each other.
    "links": {
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "operations": "u8",
        "size_bytes": "u8",
        "first_ns": "i8",
        "last_ns": "i8",
        "slot_ns": "i8",
        "idle_ns": "i8",
        "longest_idle_ns": "i8",
    },
    # message_latency: one row per pair of processes and layer, from `message_pairs`.
    # `backwards`: messages that were received before they were sent (clocks); all other columns
    # leave them out, latencies are null where there are no others. `uncertain`: of `messages`,
    # those whose order is not sure. Percentiles: the least latency that so many of them do not
    # exceed. `p50_least_ns`: least median that the pair has but for chance, which is wrong for any
    # of all pairs in one of 100 runs; null where its messages are too few to tell. `mean_bytes`: of
    # those whose size is known, null where there are none.
    "message_latency": {
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "messages": "u8",
        "backwards": "u8",
        "uncertain": "u8",
        "min_ns": "i8",
        "p50_ns": "i8",
        "p50_least_ns": "i8",
        "p99_ns": "i8",
        "max_ns": "i8",
        "mean_ns": "f8",
        "mean_bytes": "f8",
    },
    # latency_histogram: messages by size and latency, both in powers of two (as in `sizes`);
    # negative latencies have least_ns = most_ns = -1.
    "latency_histogram": {
        "layer": "u1",
        "least_bytes": "u8",
        "most_bytes": "u8",
        "least_ns": "i8",
        "most_ns": "i8",
        "count": "u8",
    },
    # waits: one row per pair of processes and layer. A receiver that did nothing from its last
    # recorded event until after the message was sent waited for a late sender; a message that with
    # the least latency of its pair and size class would have come before that event waited for a
    # late receiver. `transfer_ns`: what receivers that did nothing waited while messages were under
    # way. All are upper bounds.
    "waits": {
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "messages": "u8",
        "late_sender": "u8",
        "late_sender_ns": "i8",
        "late_receiver": "u8",
        "late_receiver_ns": "i8",
        "transfer_ns": "i8",
    },
    # in_flight: messages of a sender that are sent and not yet received; `mean` over the time from
    # its first send to its last receive.
    "in_flight": {"proc": "i4", "layer": "u1", "messages": "u8", "max": "i8", "mean": "f8"},
    # barriers: one row per barrier that was found. kind: "region" (the program's own), "doorbell"
    # (control doorbells of GPUs), "phase" (of traffic). `spread_ns`: from first to last arrival;
    # `uncertain`: clocks of members' hosts may be off by as much, so that the order is not sure.
    "barriers": {
        "barrier": "i4",
        "kind": "str",
        "name": "str",
        "members": "i4",
        "first_ns": "i8",
        "last_ns": "i8",
        "spread_ns": "i8",
        "first_proc": "i4",
        "last_proc": "i4",
        "uncertain": "bool",
    },
    # barrier_arrivals: by barrier in order of arrival, `position` from 0; gpu: the object, or 0.
    "barrier_arrivals": {
        "barrier": "i4",
        "position": "i4",
        "proc": "i4",
        "gpu": "u4",
        "arrival_ns": "i8",
        "late_ns": "i8",
    },
    # stragglers: one row per process. `barriers`: those that it came to; `last`: where it came
    # last; `caused_ns`: what all others together waited there for it; `late_ns`: how much later
    # than the first it came, at all of them; `late_sender_ns`: what receivers waited until it sent,
    # at the layer where that is most.
    "stragglers": {
        "proc": "i4",
        "barriers": "i8",
        "last": "i8",
        "caused_ns": "i8",
        "late_ns": "i8",
        "late_sender_ns": "i8",
    },
    # critical_path: what the last receive depended on, in order of time, at the layer with most
    # messages; each step begins where the one before ends. kind: "local" (what the process did
    # itself), "message" (under way from `from_proc` to `proc`).
    "critical_path": {
        "step": "i4",
        "kind": "str",
        "from_proc": "i4",
        "proc": "i4",
        "begin_ns": "i8",
        "end_ns": "i8",
        "size_bytes": "u8",
    },
    # errors: what did not go well, by process, object, kind and status. kind: "work completion" (of
    # queue pairs; status: enum ibv_wc_status), "completion" (of other layers; the library's
    # number), "failed operation" (status 0). One failure may be of two kinds. (Packets that were
    # sent again: `wire_flows`.)
    "errors": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "kind": "str",
        "status": "i4",
        "count": "u8",
    },
    # findings: what to look at first, in the order of `weight`, 0 to 1. `share`: 0 to 1, of time,
    # messages or bytes, that it concerns; null where it is no such thing (errors, idle links).
    "findings": {
        "position": "i4",
        "weight": "f8",
        "share": "f8",
        "kind": "str",
        "text": "str",
        "evidence": "str",
    },
}
"""Whole-run tables that the analyses add."""
