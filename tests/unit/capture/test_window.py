"""Which chunks a window needs, judged by simulated threads whose calls nest."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sigmatrace.capture.index import CHUNK, FROM_FILE, FileIndex
from sigmatrace.capture.window import CALL_TICKS_MAX, Cut
from sigmatrace.trace_format import CODEC_RAW, RECORDS, Layer, Op, Schema

NONE = np.empty(0, np.uint32)


def calls(chance, t, depth=0):
    """Yield (begin, length) of nested calls in the order of their ends; the last one is outer."""
    begin = t
    t += chance.randrange(1, 40)
    if depth < 3:
        for _ in range(chance.randrange(3)):
            *inner, last = calls(chance, t, depth + 1)
            yield from inner
            yield last
            t = last[0] + last[1] + chance.randrange(1, 9)
    yield begin, t - begin


def thread(chance, count):
    found, t = [], 1000
    while len(found) < count:
        found += calls(chance, t)
        t = found[-1][0] + found[-1][1] + chance.randrange(1, 60)
    return found


def chunk(records, seq, schema=Schema.OP, tid=1):
    begins = [begin for begin, _ in records]
    where = (seq, 0, 0, len(records), seq, min(begins), max(begins))
    return (*where, 0, tid, schema, FROM_FILE, 1, CODEC_RAW)


@pytest.mark.parametrize("seed", range(20))
def test_no_chunk_with_a_call_in_the_window_is_passed_over(seed):
    chance = random.Random(seed)
    records = thread(chance, 300)
    size = chance.choice([1, 2, 7, 20])
    parts = [records[at : at + size] for at in range(0, len(records), size)]
    rows = [chunk(part, seq) for seq, part in enumerate(parts)]
    order = list(range(len(rows)))
    chance.shuffle(order)
    chunks = np.array([rows[at] for at in order], CHUNK)
    last = records[-1][0]
    for _ in range(30):
        low = chance.randrange(last)
        high = low + chance.randrange(1, 400)
        needed = Cut(low, high, NONE).needs(chunks, "full")
        must = [any(b < high and (b >= low or b + n > low) for b, n in parts[at]) for at in order]
        assert not (np.array(must) & ~needed).any()
        # Of the rest, at most the chunks just before are read in vain.
        if size > 2:
            assert needed.sum() <= sum(must) + 4


def test_without_lengths_only_what_overlaps_is_needed():
    chunks = np.array([chunk([(t, 0), (t + 9, 0)], t) for t in (100, 110, 120, 130)], CHUNK)
    assert Cut(110, 120, NONE).needs(chunks, "simple").tolist() == [False, True, False, False]
    assert Cut(119, 121, NONE).needs(chunks, "simple").tolist() == [False, True, True, False]
    assert Cut(0, 100, NONE).needs(chunks, "simple").tolist() == [False] * 4


def test_the_last_call_of_a_thread_may_last_as_long_as_one_can_tell():
    chunks = np.array([chunk([(100, 0)], 0)], CHUNK)
    assert Cut(100 + CALL_TICKS_MAX, 2**62, NONE).needs(chunks, "full").tolist() == [True]
    assert Cut(101 + CALL_TICKS_MAX, 2**62, NONE).needs(chunks, "full").tolist() == [False]


def test_kernels_are_read_from_the_beginning_and_what_has_no_time_never():
    rows = [chunk([(5, 0)], 0, schema) for schema in (Schema.KERNEL, Schema.CQE, Schema.TARGET)]
    cut = Cut(10, 20, NONE)
    assert cut.needs(np.array(rows, CHUNK), "full").tolist() == [True, False, False]
    late = np.array([chunk([(20, 0)], 0, Schema.KERNEL)], CHUNK)
    assert cut.needs(late, "full").tolist() == [False]


def test_records_are_cut_to_the_tick():
    index = FileIndex("x", 0)
    index.channels = np.zeros(2, RECORDS[Schema.CHANNEL])
    index.channels["id"] = (0, 7)
    index.channels["layer"] = (Layer.OFI, Layer.VERBS)
    cut = Cut.of(index, 100, 200)
    rows = [
        (99, 0, Op.SEND, 0, False),  # an instant before
        (99, 1, Op.SEND, 0, False),  # ended as the window began
        (99, 2, Op.SEND, 0, True),  # ended in it
        (10, 9999, Op.PUT, 0, True),  # all around it
        (99, 50, Op.RECV, 0, False),  # no length but a number
        (99, 50, Op.SEND, 7, False),  # a position
        (100, 0, Op.SEND, 0, True),
        (199, 50, Op.SEND, 0, True),
        (200, 0, Op.SEND, 0, False),
    ]
    records = np.zeros(len(rows), RECORDS[Schema.OP])
    for at, name in enumerate(("t_tsc", "aux", "op", "channel")):
        records[name] = [row[at] for row in rows]
    assert cut.inside(Schema.OP, records).tolist() == [row[-1] for row in rows]
    kernels = np.zeros(3, RECORDS[Schema.KERNEL])
    kernels["t_tsc"], kernels["duration_tsc"] = (1, 1, 200), (99, 100, 5)
    assert cut.inside(Schema.KERNEL, kernels).tolist() == [False, True, False]
    assert cut.holds(100, 199) and not cut.holds(99, 150) and not cut.holds(150, 200)
