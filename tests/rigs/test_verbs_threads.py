"""Several threads post to one queue pair: exact numbers, an order that is called uncertain."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from sigmatrace.trace_format import Op, OpFlag
from tests.rigs.pairs import KINDS, OPS, Connection, Key, Trace
from tests.rigs.rig import Rig
from tests.rigs.test_verbs import BOTH, all_matched, check
from tests.rigs.test_verbs_programs import CLIENT, check_completion, run_group
from tests.rigs.traced import Traced

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

THREADS, OWN = 4, 64
WRITE, SEND = 0, 2


def own_requests(thread: int) -> list[tuple[int, int, int]]:
    """(opcode, bytes, signaled) of what a thread posts, in its order."""
    return [
        (WRITE if number % 4 else SEND, 100 * thread + number + 1, int(number % 4 != 1))
        for number in range(OWN)
    ]


@BOTH
def test_threads_of_one_queue_pair(rig: Rig, tmp_path: Path, mode: str) -> None:
    traced, printed = run_group(rig, tmp_path, mode, "threads")
    ((key, sender),) = [(key, one) for key, one in printed.items() if key[0] == CLIENT]
    ((other, receiver),) = [(key, one) for key, one in printed.items() if key[0] != CLIENT]
    check_program(sender)
    check(traced)
    all_matched(traced)
    trace = Trace(traced)
    check_operations(traced, trace.operations()[key])
    arrivals = trace.arrivals()[other]
    assert [position for position, _ in arrivals] == list(range(THREADS * OWN // 4))
    assert [size for _, size in arrivals] == receiver.arrivals()
    check_ordinals(traced)
    if mode == "full":
        check_full(trace, key, sender)
        check_completion(traced, printed)
        assert traced.stage["completion"]["send_outstanding"] == 0


def check_program(sender: Connection) -> None:
    """The program did what its source says."""
    posted = defaultdict(list)
    for one in sender.sent:
        posted[one.wr_id >> 8].append((one.opcode, one.size_bytes, one.signaled))
    assert posted == {thread: own_requests(thread) for thread in range(THREADS)}


def check_operations(traced: Traced, operations: list[tuple[int, ...]]) -> None:
    """No position is missing or double; those of a thread are in the order of its calls."""
    assert [position for position, *_ in operations] == list(range(THREADS * OWN))
    query = f"""select thread, list((op, size_bytes, (flags & {OpFlag.SIGNALED}) >> 6)
        order by aux) from ops where op <> {Op.RECV} group by thread"""
    by_thread = sorted([tuple(one) for one in found] for _, found in traced.rows(query))
    told = [[(OPS[KINDS[code]], *rest) for code, *rest in own_requests(n)] for n in range(THREADS)]
    assert by_thread == sorted(told)
    uncertain = f"select count(*) from ops where flags & {OpFlag.ORDER_UNCERTAIN} <> 0"
    ((count,),) = traced.rows(uncertain)
    assert count >= (THREADS - 1) * OWN


def check_ordinals(traced: Traced) -> None:
    """Each channel counts from 0 without holes: writes, messages, arrivals."""
    found = traced.rows("select list(ordinal order by ordinal) from ops group by channel")
    messages = THREADS * OWN // 4
    counts = sorted([messages, messages, THREADS * OWN - messages])
    assert sorted(len(one) for (one,) in found) == counts
    assert all(one == list(range(len(one))) for (one,) in found)


def check_full(trace: Trace, key: Key, sender: Connection) -> None:
    """Requests and completions with all that the program knows of them."""
    requests = trace.requests()[key]
    assert sorted(tuple(one[1:]) for one in requests) == sorted(one[1:] for one in sender.sent)
    assert [position for position, *_ in requests] == list(range(THREADS * OWN))
    order = defaultdict(list)
    for _, wr_id, *_ in requests:
        order[wr_id >> 8].append(wr_id & 255)
    assert order == {thread: list(range(OWN)) for thread in range(THREADS)}
    done = trace.completions(receive=False)[key]
    assert sorted(done) == sorted(sender.completions(receive=False))
    assert trace.retired()[key] == THREADS * OWN
