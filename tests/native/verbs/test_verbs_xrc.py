"""XRC: messages to several shared receive queues over one connection."""

from __future__ import annotations

from collections import defaultdict

import pytest
from plain_reader import Rank, merged

OUT, IN, MSG = 1, 2, 1
HAS_TAG, TAG_UNKNOWN = 1, 16


def sizes(rank: Rank, direction: int) -> dict[tuple[int, int], list[int]]:
    """Sizes of the messages in their order, by tag and flags of the channel."""
    channels = {
        c["id"]: (c["tag"], c["flags"])
        for c in rank.records(2)
        if (c["dir"], c["kind"]) == (direction, MSG)
    }
    found = defaultdict(list)
    for op in rank.records(1):
        if op["channel"] in channels:
            assert op["ordinal"] == len(found[channels[op["channel"]]])
            found[channels[op["channel"]]].append(op["size_bytes"])
    return dict(found)


def test_objects(run) -> None:
    rank = run("driver", "xrc", 0).rank()
    (domain,) = merged(rank, "ib_xrcd")
    assert domain["device"] == merged(rank, "ib_device")[0]["id"] and domain["closed_tsc"]
    (pd,) = merged(rank, "ib_pd")
    queues = merged(rank, "ib_srq")
    assert [(q["srq_type"], q["xrcd"], q["pd"], q["max_wr"]) for q in queues] == [
        ("xrc", domain["id"], pd["id"], 64)
    ] * 2
    assert [q["srqn"] for q in queues] == [0x21, 0x22]
    incoming, outgoing = merged(rank, "ib_qp")
    assert (incoming["qp_type"], incoming["xrcd"], "pd" in incoming) == (
        "xrc_recv",
        domain["id"],
        False,
    )
    assert (outgoing["qp_type"], outgoing["pd"], "xrcd" in outgoing) == (
        "xrc_send",
        pd["id"],
        False,
    )
    (plain,) = merged(run("driver", "srq", mode="simple").rank(), "ib_srq")
    assert (plain["srq_type"], plain["max_wr"]) == ("basic", 64)
    assert "srqn" not in plain and "xrcd" not in plain


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_each_shared_queue_is_a_stream(run, mode: str) -> None:
    rank = run("driver", "xrc", 0, mode=mode).rank()
    expected = {(0x21, HAS_TAG): [10, 12, 14], (0x22, HAS_TAG): [11, 13, 15, 77]}
    assert sizes(rank, OUT) == expected == sizes(rank, IN)
    assert len(rank.records(1)) == 15  # and the write
    assert rank.end["lost"] == {}
    if mode == "full":
        took = [(c["object"], c["wr_id"]) for c in rank.records(8) if c["queue"] == 3]
        (incoming, _) = merged(rank, "ib_qp")
        assert took == [
            *((incoming["id"], 100 * 0x22 + i) for i in range(4)),
            *((incoming["id"], 100 * 0x21 + i) for i in range(3)),
        ]


def test_queues_that_complete_together_are_not_told_apart(run) -> None:
    rank = run("driver", "xrc", 1).rank()
    assert sizes(rank, OUT) == {
        (0x21, HAS_TAG): [10, 13],
        (0x22, HAS_TAG): [11, 14, 77],
        (0x23, HAS_TAG): [12, 15],
    }
    assert sizes(rank, IN) == {(0x21, HAS_TAG): [10, 13], (0, TAG_UNKNOWN): [11, 12, 14, 15, 77]}
