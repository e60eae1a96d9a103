from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.schema import Fate
from sigmatrace.stages.channels import Channels
from sigmatrace.stages.match import COUNTS, Match, Matched
from sigmatrace.stages.match_order import restore
from sigmatrace.stages.topology import Topology
from sigmatrace.trace_format import ChannelFlag, Kind, Layer, Op, OpFlag
from tests.factories import (
    in_channel,
    make_partition,
    make_run,
    message_rows,
    out_channel,
    two_by_two,
    ucp_endpoints,
)


@pytest.fixture(scope="module")
def ring():
    """Channels 0 -> 1 (0 and 1), 1 -> 0 (2 and 3), RMA (4), to nowhere (5)."""
    run = make_run(
        processes=[{}, {}],
        endpoints=ucp_endpoints(2, [(0, 5, 1), (1, 5, 0)]),
        channels=[
            out_channel(0, 5),
            in_channel(1),
            out_channel(1, 5),
            in_channel(0),
            out_channel(0, 5, kind=Kind.RMA),
            out_channel(0, 42, tag=7),
        ],
    )
    topology = Topology()
    routes = topology.survey(run)
    return run.with_results(topology.results(routes)), topology, routes


def match(ring, *pieces, order=None):
    """Apply and summarize pieces of rows; return partitions, messages and ledger."""
    run, topology, routes = ring
    stage = Match()
    parts = [
        stage.apply(
            topology.apply(replace(make_partition(number, ops=rows), run=run), routes), None
        )
        for number, rows in enumerate(pieces)
    ]
    summaries = [stage.summarize(part) for part in parts]
    merged = two_by_two(stage, [summaries[k] for k in order or range(len(parts))])
    resolved = stage.resolve(merged, run)
    ledger = stage.account(resolved)
    check_balance(ledger, sum(map(len, pieces)))
    for book in (ledger, *ledger["layers"].values()):
        for part in (book, book["own"], book["nested"]):
            check_kinds(part)
    assert ledger["ops"] == sum(layer["ops"] for layer in ledger["layers"].values())
    return parts, stage.results(resolved)["messages"].to_pylist(), ledger


def check_balance(ledger, rows):
    for one in ledger["balance"]:
        left = rows if one["left"] == "records.op" else one["left"]
        assert left == sum(one["right"]), one


def check_kinds(ledger):
    for end in ("sends", "receives"):
        rest = sum(ledger[f"{end}_unmatched"].values())
        assert ledger[end] == ledger[f"{end}_matched"] + rest
        assert min(ledger[f"{end}_unmatched"].values()) >= 0
    parts = ("sends", "receives", "one_sided", "not_a_message")
    assert ledger["ops"] == sum(ledger[part] for part in parts)


def test_all_matched_and_flows_equal_at_both_ends(ring):
    parts, messages, ledger = match(
        ring, message_rows(0, Op.SEND, 100), message_rows(1, Op.RECV, 100, proc=1)
    )
    sent, got = (part.column("ops", "flow") for part in parts)
    assert (sent == got).all() and len(set(sent.tolist())) == 100 and (sent > 0).all()
    assert messages == [
        {
            "group": 0,
            "src_proc": 0,
            "dst_proc": 1,
            "layer": 2,
            "kind": Kind.TAG,
            "sent": 100,
            "received": 100,
            "matched": 100,
            "sent_bytes": 800,
            "received_bytes": 800,
            "size_unknown": 0,
            "uncertain": 0,
        }
    ]
    assert ledger["sends_matched"] == 100


def test_every_operation_is_accounted_for_by_reason(ring):
    rows = [
        *message_rows(0, Op.SEND, 10),
        *message_rows(4, Op.PUT, 3),
        *message_rows(4, Op.FLUSH, 2),
        *message_rows(5, Op.SEND, 4),
        *message_rows(1, Op.RECV, 7, proc=1, first=5),
        *message_rows(0, Op.SEND, 2),  # seen again
        {"channel": 99, "op": Op.RECV},
    ]
    _, messages, ledger = match(ring, rows)
    assert ledger["ops"] == 29
    assert ledger["sends_matched"] == 5
    assert ledger["sends_unmatched"]["not_seen_received"] == 5
    assert ledger["sends_unmatched"]["duplicate"] == 2
    assert ledger["sends_unmatched"]["peer_unknown"] == 4
    assert ledger["receives_unmatched"]["not_seen_sent"] == 2
    assert ledger["receives_unmatched"]["peer_unknown"] == 1
    assert (ledger["one_sided"], ledger["not_a_message"]) == (3, 2)
    assert (messages[0]["sent"], messages[0]["received"], messages[0]["matched"]) == (12, 7, 5)


def test_completion_order_is_put_back_into_posting_order(ring):
    """Four receives posted 10, 11, 12, 13 completed as 11, 13, 10, 12."""
    posted = [11, 13, 10, 12]
    rows = message_rows(1, Op.RECV, 4, proc=1)
    for row, aux in zip(rows, posted, strict=True):
        row["aux"] = aux
    parts, _, ledger = match(ring, rows)
    flow = parts[0].column("ops", "flow") & np.uint64(2**32 - 1)
    assert flow.tolist() == [1, 3, 0, 2]
    assert parts[0].column("ops", "ordinal").tolist() == [0, 1, 2, 3]
    assert ledger["uncertain_order"] == 0


def test_inversions_over_the_border_of_partitions_are_counted(ring):
    first, second = message_rows(1, Op.RECV, 6), message_rows(1, Op.RECV, 6, first=6)
    first[5]["aux"], second[0]["aux"] = 6, 5
    _, messages, ledger = match(ring, message_rows(0, Op.SEND, 12), first, second)
    assert messages[0]["matched"] == 12
    assert messages[0]["uncertain"] == ledger["uncertain_order"] == 6
    _, messages, ledger = match(
        ring, message_rows(1, Op.RECV, 6), message_rows(1, Op.RECV, 6, first=6)
    )
    assert messages[0]["uncertain"] == 0


def test_uncertain_flags_are_counted(ring):
    rows = message_rows(0, Op.SEND, 3, flags=OpFlag.ORDER_UNCERTAIN) + message_rows(
        0, Op.SEND, 2, first=3, flags=OpFlag.FAILED
    )
    _, messages, _ = match(ring, rows)
    assert messages[0]["uncertain"] == 5


@pytest.fixture(scope="module")
def datagrams():
    """Channel 0 -> 1 of endpoints that may lose messages; the receiver's context does not say."""
    endpoints = ucp_endpoints(2, [(0, 5, 1)])
    endpoints[0]["lossy"] = 1
    run = make_run(
        processes=[{}, {}], endpoints=endpoints, channels=[out_channel(0, 5), in_channel(1)]
    )
    topology = Topology()
    routes = topology.survey(run)
    return run.with_results(topology.results(routes)), topology, routes


@pytest.mark.parametrize("lost", [0, 2])
def test_messages_that_may_be_lost_are_matched_by_number_alone(datagrams, lost):
    sends, receives = message_rows(0, Op.SEND, 10), message_rows(1, Op.RECV, 10 - lost, proc=1)
    parts, messages, ledger = match(datagrams, sends, receives)
    assert [part.column("ops", "lossy").all() for part in parts] == [True, True]
    assert messages[0]["matched"] == 10 - lost
    assert messages[0]["uncertain"] == ledger["uncertain_order"] == 20 - lost
    assert ledger["lossy"] == {
        **{"streams": 1, "sent": 10, "received": 10 - lost, "matched": 10 - lost},
        **{"torn_streams": int(lost > 0), "matched_in_torn": 8 if lost else 0},
    }
    lines = Match().lines(Matched(pa.table({}), ledger), datagrams[0])
    (at,) = (k for k, line in enumerate(lines) if line.startswith("uncertain  "))
    said = f"uncertain  {10 - lost} messages matched by number alone: the transport may lose"
    assert lines[at].startswith(said)
    torn = ["             8 of them in 1 stream that lost some: behind a loss they are wrong"]
    assert lines[at + 1 :] == (torn if lost else [])


def test_a_transport_that_loses_nothing_raises_no_doubt(ring):
    _, _, ledger = match(ring, message_rows(0, Op.SEND, 3), message_rows(1, Op.RECV, 2, proc=1))
    assert set(ledger["lossy"].values()) == {0}
    assert len(Match().lines(Matched(pa.table({}), ledger), ring[0])) == 3


@pytest.mark.parametrize(("size", "differ"), [(8, 0), (9, 1)])
def test_sizes_that_differ_at_both_ends_are_told(ring, size, differ):
    """All are matched, of a known size, and the bytes are others: some pair is wrong."""
    rows = message_rows(1, Op.RECV, 2, proc=1) + message_rows(
        1, Op.RECV, 1, proc=1, first=2, size_bytes=size
    )
    _, _, ledger = match(ring, message_rows(0, Op.SEND, 3), rows)
    assert ledger["streams_sizes_differ"] == differ
    lines = Match().lines(Matched(pa.table({}), ledger), ring[0])
    said = ["differing  1 stream with other sizes at the receiver's end"]
    assert lines[2:] == (said if differ else [])
    rows[0]["flags"] = OpFlag.SIZE_UNKNOWN
    _, _, ledger = match(ring, message_rows(0, Op.SEND, 3), rows)
    assert ledger["streams_sizes_differ"] == 0


def test_a_size_that_is_not_known_is_not_a_size_of_zero(ring):
    unknown = {"flags": OpFlag.SIZE_UNKNOWN, "size_bytes": 0}
    rows = [
        *message_rows(0, Op.SEND, 3),
        *message_rows(1, Op.RECV, 2, proc=1, **unknown),
        *message_rows(1, Op.RECV, 1, proc=1, first=2, size_bytes=0),
    ]
    _, messages, ledger = match(ring, rows[:4], rows[4:])
    assert messages[0]["matched"] == 3
    assert (messages[0]["sent_bytes"], messages[0]["received_bytes"]) == (24, 0)
    assert messages[0]["size_unknown"] == ledger["size_unknown"] == 2
    assert messages[0]["uncertain"] == 0


def test_ordinals_wrap_and_sizes_beyond_64_bits_are_said(ring):
    rows = message_rows(0, Op.SEND, 4, first=2**32 - 2, size_bytes=2**63 - 1)
    back = message_rows(1, Op.RECV, 4, first=2**32 - 2, proc=1, size_bytes=2**62)
    _, messages, ledger = match(ring, rows, back)
    assert messages[0]["matched"] == 4
    assert messages[0]["sent_bytes"] == 2**64 - 1
    assert messages[0]["received_bytes"] == 2**64 - 1
    assert ledger["byte_sums_beyond_u64"] == 2
    _, messages, _ = match(ring, rows[:2])
    assert messages[0]["sent_bytes"] == 2**64 - 2


def test_nothing_at_all(ring):
    _, messages, ledger = match(ring, [])
    assert messages == [] and ledger["ops"] == 0


PIECE = st.lists(
    st.tuples(
        st.sampled_from([(0, Op.SEND), (1, Op.RECV), (2, Op.SEND), (3, Op.RECV), (4, Op.GET)]),
        st.integers(0, 12),
        st.sampled_from([0, OpFlag.NESTED, OpFlag.SYNC, OpFlag.SIGNALED]),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(st.lists(PIECE, min_size=1, max_size=5), st.randoms())
def test_counts_equal_sets_in_whatever_order_partitions_are_merged(ring, pieces, random):
    order = list(range(len(pieces)))
    random.shuffle(order)
    rows = [
        [
            {
                "channel": c,
                "op": op,
                "ordinal": k,
                "aux": k,
                "flags": flags,
                "proc": int(c in (1, 2)),
            }
            for (c, op), k, flags in piece
        ]
        for piece in pieces
    ]
    _, messages, ledger = match(ring, *rows, order=order)
    seen, count = defaultdict(set), Counter()
    below, count_below = defaultdict(set), Counter()
    for (c, _), k, flags in itertools.chain(*pieces):
        seen[c].add(k)
        count[c] += 1
        if flags == OpFlag.NESTED:
            below[c].add(k)
            count_below[c] += 1
    for row in messages:
        out, back = (0, 1) if row["src_proc"] == 0 else (2, 3)
        assert (row["sent"], row["received"]) == (count[out], count[back])
        assert row["matched"] == len(seen[out] & seen[back])
    assert ledger["sends_matched"] == len(seen[0] & seen[1]) + len(seen[2] & seen[3])
    assert ledger["one_sided"] == count[4]
    duplicates = sum(count[c] - len(seen[c]) for c in (0, 2))
    assert ledger["sends_unmatched"]["duplicate"] == duplicates
    nested = ledger["nested"]
    for end, pairs in (("sends", [(0, 1), (2, 3)]), ("receives", [(1, 0), (3, 2)])):
        assert nested[end] == sum(count_below[here] for here, _ in pairs)
        matched = sum(len(below[here] & seen[there]) for here, there in pairs)
        assert nested[f"{end}_matched"] == matched
        assert ledger["own"][f"{end}_matched"] == ledger[f"{end}_matched"] - matched
        again = sum(count_below[here] - len(below[here]) for here, _ in pairs)
        assert nested[f"{end}_unmatched"]["duplicate"] == again
    assert (nested["one_sided"], ledger["own"]["one_sided"]) == (
        count_below[4], count[4] - count_below[4],
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 30)), max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_restore_hands_the_ordinals_out_by_posting_order(rows, base):
    channel = np.array([c for c, _, _ in rows], np.uint32)
    op = np.array([Op.RECV if r else Op.SEND for _, r, _ in rows], np.uint8)
    aux = np.array([(a + base) % 2**32 for _, _, a in rows], np.uint32)
    taken = defaultdict(itertools.count)
    ordinal = np.array([(next(taken[c, r]) + base) % 2**32 for c, r, _ in rows], np.uint32)
    channels = Channels(0, 3, channel, make_run())
    got = restore(channels, op, np.zeros(3, np.uint8), ordinal, aux)
    for c, r in {(c, r) for c, r, _ in rows}:
        at = [k for k, row in enumerate(rows) if row[:2] == (c, r)]
        want = ordinal[at].tolist()
        if r:
            by_post = sorted(at, key=lambda k: rows[k][2])  # stable: ties stay as completed
            want = [int(ordinal[at[by_post.index(k)]]) for k in at]
        assert got[at].tolist() == want


def test_fates_fit_the_counting_table():
    assert max(Fate) < COUNTS[3]


def test_a_put_with_data_is_the_send_of_the_arrival_that_shows_its_data():
    data = {"kind": Kind.RMA, "flags": ChannelFlag.HAS_DATA, "data": 7}
    run = make_run(
        processes=[{}, {}],
        endpoints=ucp_endpoints(2, [(0, 5, 1), (1, 5, 0)]),
        channels=[out_channel(0, 5, **data), in_channel(1, **data)],
    )
    topology = Topology()
    routes = topology.survey(run)
    run = run.with_results(topology.results(routes))
    rows = [
        {"proc": 0, "channel": 0, "op": Op.PUT_DATA, "size_bytes": 8},
        {"proc": 1, "channel": 1, "op": Op.RECV, "size_bytes": 8},
        {"proc": 0, "channel": 0, "op": Op.PUT, "size_bytes": 8, "ordinal": 1},
    ]
    parts, messages, ledger = match((run, topology, routes), rows)
    first, second, plain = parts[0].column("ops", "flow").tolist()
    assert first == second != 0 == plain
    assert [row["matched"] for row in messages] == [1]
    assert (ledger["sends"], ledger["receives"], ledger["one_sided"]) == (1, 1, 1)


def test_each_layer_has_its_own_share():
    """UCP matches wholly; of UCT, below it, two channels could have carried what arrived."""
    uct = {"layer": Layer.UCT, "kind": Kind.AM}
    run = make_run(
        processes=[{}, {}],
        endpoints=ucp_endpoints(2, [(0, 5, 1), (1, 5, 0)]),
        channels=[
            *(out_channel(0, 5), in_channel(1), in_channel(1, 77, **uct)),
            *(out_channel(0, 5, kind=Kind.RMA), out_channel(0, 5, **{**uct, "kind": Kind.RMA})),
        ],
    )
    topology, stage = Topology(), Match()
    routes = topology.survey(run)
    run = run.with_results(topology.results(routes))
    rows = [
        *message_rows(0, Op.SEND, 10),
        *message_rows(1, Op.RECV, 10, proc=1),
        *message_rows(2, Op.RECV, 3, proc=1),
        *message_rows(3, Op.PUT, 2),
        *message_rows(4, Op.GET, 5),
    ]
    parts, _, ledger = match((run, topology, routes), rows)
    assert set(ledger["layers"]) == {"ucp", "uct"}
    assert ledger["layers"]["ucp"]["receives_matched"] == ledger["layers"]["ucp"]["receives"] == 10
    assert ledger["layers"]["uct"]["receives_matched"] == 0
    assert ledger["receives"] == 13
    lines = stage.lines(stage.resolve(stage.summarize(parts[0]), run), run)
    assert list(lines) == [
        "sends      10, matched 10 (100.0 %)",
        "  ucp      10, matched 10 (100.0 %)",
        "receives   13, matched 10 (76.9 %)",
        "  ucp      10, matched 10 (100.0 %)",
        "  uct      3, matched 0 (0.0 %)",
        "             3 peer unknown",
        "one-sided  7",
        "  ucp      2",
        "  uct      5",
    ]


def test_one_layer_needs_no_line_of_its_own(ring):
    run, _, _ = ring
    stage = Match()
    parts, _, _ = match(ring, message_rows(0, Op.SEND, 2), message_rows(4, Op.PUT, 1))
    merged = stage.combine_all([stage.summarize(part) for part in parts])
    assert stage.lines(stage.resolve(merged, run), run) == [
        "sends      2, matched 0 (0.0 %)",
        "             2 not seen received",
        "receives   0, matched 0",
        "one-sided  1",
    ]


def test_nested_messages_have_a_line_of_their_own(ring):
    """A provider's own messages, of which one in ten shows its other end, are not the program's."""
    run, _, _ = ring
    stage, below = Match(), {"flags": OpFlag.NESTED | OpFlag.INLINE}
    rows = [
        *message_rows(0, Op.SEND, 20),
        *message_rows(1, Op.RECV, 20, proc=1),
        *message_rows(2, Op.SEND, 1000, proc=1, **below),
        *message_rows(3, Op.RECV, 100, **below),
        *message_rows(5, Op.SEND, 7, **below),
        *message_rows(4, Op.PUT, 3, **below),
        *message_rows(4, Op.PUT, 2, first=3),
    ]
    parts, _, ledger = match(ring, rows[::2], rows[1::2])
    merged = stage.combine_all([stage.summarize(part) for part in parts])
    assert stage.lines(stage.resolve(merged, run), run) == [
        "sends      20, matched 20 (100.0 %)",
        "receives   20, matched 20 (100.0 %)",
        "one-sided  2",
        "nested     sends 1 007, matched 100 (9.9 %); receives 100, matched 100 (100.0 %);"
        " one-sided 3",
    ]
    assert ledger["nested"]["sends_unmatched"]["not_seen_received"] == 900
    assert ledger["nested"]["sends_unmatched"]["peer_unknown"] == 7
    assert ledger["own"]["sends_matched"] == ledger["own"]["sends"] == 20
    assert ledger["sends_matched"] == 120


def test_each_end_of_a_message_is_nested_or_not_by_itself(ring):
    """One end may see the provider's call, where the other's is the program's own."""
    rows = [
        *message_rows(0, Op.SEND, 4, flags=OpFlag.NESTED),
        *message_rows(0, Op.SEND, 4, first=4),
        *message_rows(1, Op.RECV, 6, proc=1),
    ]
    _, _, ledger = match(ring, rows)
    assert (ledger["nested"]["sends_matched"], ledger["own"]["sends_matched"]) == (4, 2)
    assert (ledger["nested"]["receives_matched"], ledger["own"]["receives_matched"]) == (0, 6)
    assert ledger["own"]["sends_unmatched"]["not_seen_received"] == 2
