"""What is traced once each: ways of ringing and of setting up, lives and ends, and disturbances."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.rigs.mlx5.emulated import ALL, DIALECTS, ROOMY
from tests.rigs.mlx5.gpu import judge, machine
from tests.rigs.mlx5.gpu.judge import Traced, need
from tests.rigs.mlx5.gpu.runner import Runner

_STALLS = (("MLX5EMU_STALL_US", "3000"), ("MLX5EMU_STALL_EACH_US", "3000"))
_STANDS_STILL = (("MLX5EMU_STALL_US", "200000"), ("MLX5EMU_STALL_EACH_US", "0"))
_SLOW = (("MLX5EMU_READ_US", "100"),)
_NO_RECOVERY = (("MLX5EMU_RECOVER_US", "0"), ("MLX5EMU_REREAD", "0"))
_UNCERTAIN = {
    "gpu: queue pair whose last doorbells may not have been seen",
    "gpu: register whose last doorbells may not have been seen",
}
_LEAST_PAUSE_MS = 1.0


def _whole(traced: Traced) -> str:
    judge.slot_by_slot(traced)
    return "none missing"


def _counted(traced: Traced) -> str:
    """What was overwritten before it was copied is counted, and nothing invented in its place."""
    judge.slot_by_slot(traced, whole=False)
    late = f", {traced.uncopied} not copied before the end" if traced.uncopied else ""
    return f"{traced.invalid} overwritten before they were copied{late}: counted"


def overwritten(traced: Traced) -> str:
    """Some slots, and not all: those that were read in time are right, too."""
    text = _counted(traced)
    need(traced.invalid, "nothing was overwritten, though the copier was slow")
    recovered = traced.node.total("slots") - traced.missing
    need(recovered > 0, f"nothing was recovered: {text}")
    return f"{recovered} recovered, {text}"


def _copied(traced: Traced) -> str:
    """What was copied before the forward cannot be overwritten, unless it waited in vain."""
    text, late = _counted(traced), judge.late(traced)
    need(late or not traced.invalid, f"{text}; no doorbell was late")
    return f"{text}; {late} doorbells waited in vain" if late else text


def _one_by_one(traced: Traced) -> str:
    judge.slot_by_slot(traced)
    return f"none missing, {judge.doorbells_one_by_one(traced)} doorbells one by one"


def _paused(traced: Traced) -> str:
    """The sweeper stands still: all doorbells are seen; its last look is not waited for long."""
    judge.slot_by_slot(traced, whole=False)
    need(traced.rank.lost.keys() <= _UNCERTAIN, f"lost: {dict(traced.rank.lost)}")
    rings, pause_ms = judge.doorbells_one_by_one(traced), judge.longest_pause_ms(traced)
    need(pause_ms >= _LEAST_PAUSE_MS, f"the sweeper never stood still: {pause_ms:.2f} ms at most")
    text = f"{rings} doorbells one by one, up to {pause_ms:.1f} ms apart"
    return f"{text}; {traced.missing} not copied before the end: counted"


def _left(traced: Traced) -> str:
    return f"none missing; the NIC had not come to {judge.given_up(traced)} WQEs"


@dataclass(frozen=True)
class Case:
    """One run of gpu_pair.

    Attributes:
        options: Of gpu_pair.
        judged: Raises `WrongError`, or tells what was found.
        env: Added to the environment.
        ranks: Processes.
        busy: Whether another program has the sweeper's processor half of the time.
        expected: Said of it in the results.
        compared: Whether it is run once more without the tracer, and both times are told.
    """

    options: tuple[str, ...]
    judged: Callable[[Traced], str] = _whole
    env: tuple[tuple[str, str], ...] = ()
    ranks: int = 1
    busy: bool = False
    expected: str = ""
    compared: bool = False

    @property
    def name(self) -> str:
        """For the verdict."""
        words = [word for word in self.options if word not in (ALL, ROOMY)]
        busy = ["the sweeper's processor is busy"] if self.busy else []
        return " ".join([*words, *(f"{key}={value}" for key, value in self.env), *busy])


def _dialects(ops: int) -> list[Case]:
    found = []
    for name, uar in DIALECTS.items():
        how = (ALL, f"dialect={name}", f"uar={uar}", f"ops={ops}", "qps=2", ROOMY)
        found.append(Case((*how, "blocks=4", "threads=2")))
        found.append(Case((*how, "blocks=2", "window=1"), _one_by_one))
    return found


def _set_ups(ops: int) -> list[Case]:
    ways = ("memory=dmabuf", "memory=host", "memory=host heap=host", "dci=1", "dci=1 av=long")
    more = ("receives=1", "group=16", "uar=shared", "uar=plain", "uar=plain dialect=doca")
    sizes = (ALL, f"ops={ops}", "blocks=4", "threads=2", "qps=2", ROOMY)
    cases = [Case((*way.split(), *sizes)) for way in (*ways, *more)]
    made = ("make=verbs", ALL, f"ops={ops}", "qps=4", "blocks=4", ROOMY)
    for way in ("dialect=rdma", "dialect=rocshmem", "dialect=rdma dci=1"):
        cases.append(Case((*way.split(), *made), env=_NO_RECOVERY))
    one = (("MLX5EMU_QP_REGISTERS", "1"), ("MLX5EMU_REREAD", "0"))
    return [*cases, Case(("dialect=rdma", *made), env=one)]


def _lives(ops: int, many: int) -> list[Case]:
    """Objects that end, are made anew, and are many."""
    sizes = (ALL, f"ops={ops}", "qps=2", "blocks=2", ROOMY)
    host = ("memory=host", "heap=host")
    return [
        Case(("lives=3", *sizes)),
        Case(("lives=3", "uar=shared", *sizes)),
        Case(("rounds=3", *sizes)),
        Case(("rounds=3", "uar=plain", *sizes)),
        Case(("rounds=3", "dialect=rocshmem", "uar=bf", *sizes)),
        Case(("abandon=1", *sizes), _left, _STANDS_STILL),
        Case((ALL, f"ops={ops}", "qps=64", "blocks=64", *host), compared=True),
        Case((ALL, "ops=11", f"qps={many}", f"blocks={many}", "slots=64", *host), compared=True),
    ]


def _disturbances(ops: int, slow: int) -> list[Case]:
    """Rings that are filled wholly; a NIC and a sweeper that stand still, a copier that is slow."""
    small = "the kernel fills the whole ring before it rings"
    host = ("mix=inline", "memory=host", "heap=host", "qps=2", "blocks=2")
    cases = [
        Case((ALL, f"ops={ops}", "slots=64", "qps=2", "blocks=2"), _counted, _STALLS),
        Case((*host, f"ops={slow}", "window=1", ROOMY), _paused, busy=True),
        Case(
            (*host, f"ops={40 * ops}", "slots=64"),
            overwritten,
            _SLOW,
            expected="the copier is slow",
        ),
    ]
    # A copy that is only enqueued before the forward may come after what it should have read.
    orders = {"forward-first": _counted, "copy-first": _counted, "sync": _copied}
    for order, judged in orders.items():
        for slots in ("slots=32", "slots=256"):
            options = (ALL, f"ops={ops * 4}", slots)
            # By itself the NIC may execute what was not forwarded: it is overwritten in any order.
            env = (("SIGMATRACE_DOORBELL", order), *_NO_RECOVERY)
            cases.append(Case(options, judged, env, expected=small))
    return cases


def single(ops: int, many: int, slow: int) -> list[Case]:
    """Of one process.

    Args:
        ops: Of each thread.
        many: Queue pairs, where there are many.
        slow: Operations of each thread where the sweeper stands still: they must take longer than
            a turn of another program on its processor.
    """
    return [*_dialects(ops), *_set_ups(ops), *_lives(ops, many), *_disturbances(ops, slow)]


def wrap(ops: int) -> Case:
    """The 16-bit index wraps, where there are enough operations."""
    return Case(("mix=inline", f"ops={ops}", "group=64", "slots=32768", "heap=host"), _counted)


def pairs(ops: int) -> list[Case]:
    """Of two processes."""
    return [
        Case((ALL, f"ops={ops}", ROOMY), ranks=2),
        Case(("mix=send,imm", f"ops={ops // 2}", ROOMY), ranks=2),
        Case((ALL, f"ops={ops}", ROOMY, "blocks=4", "qps=4", "memory=host", "heap=host"), ranks=2),
    ]


def run(runner: Runner, case: Case) -> str:
    """Runs a case, slot by slot.

    Raises:
        WrongError: Something is not as it should be.
    """
    env, begin = dict(case.env), time.monotonic()
    with (
        machine.busy(runner.emulated.cpus if case.busy else None) as pinned,
        runner.traced(*case.options, ranks=case.ranks, **env, **pinned) as found,
    ):
        took_s = time.monotonic() - begin
        told = [case.judged(traced) for traced in found]
        slots = sum(traced.node.total("slots") for traced in found)
        rings = sum(traced.node.total("doorbells") for traced in found)
        missing = sum(traced.missing for traced in found)
    why = f" ({case.expected})" if case.expected and missing else ""
    if case.compared:
        begin = time.monotonic()
        with runner.plain(*case.options, ranks=case.ranks, **env) as nodes:
            plain_s = time.monotonic() - begin
            for node in nodes:
                judge.went_well(node)
        told.append(f"{took_s:.1f} s, without the tracer {plain_s:.1f} s")
    return f"{slots} slots, {rings} doorbells at the NIC; {'; '.join(sorted(set(told)))}{why}"


def doorbells_alone(runner: Runner, ops: int) -> str:
    """Order `off`: doorbells announce all slots, and none is read.

    Raises:
        WrongError: Something is not as it should be.
    """
    options = (ALL, f"ops={ops}", "blocks=4", "threads=2", "qps=2")
    with runner.traced(*options, SIGMATRACE_DOORBELL="off") as (traced,):
        announced = judge.doorbells_alone(traced)
    return f"{announced} slots announced, none read"


def _kernel(runner: Runner, traced: Traced, blocks: int) -> None:
    point = "CUPTI's kernel encloses its doorbells"
    if runner.cupti is None:
        runner.say(point, "not run", "no CUPTI here")
    else:
        runner.judge(point, lambda: judge.kernels(traced, "pair_run", blocks, 1))


def persistent(runner: Runner, mode: str, memory: str, qps: int, doorbells: int) -> str:
    """One kernel, a block for each queue pair, every doorbell waited for.

    Args:
        runner: Runs it.
        mode: Of the trace.
        memory: Of rings; "host" and "mirrored": the emulated NIC is fast, and data in the host.
        qps: Queue pairs.
        doorbells: Of all together.

    Raises:
        WrongError: Something is not as it should be.
    """
    ops = doorbells // qps
    options = ("mix=inline", f"qps={qps}", f"blocks={qps}", f"ops={ops}", "window=1")
    data = "heap=gpu" if memory == "gpu" else "heap=host"
    where = (f"memory={memory}", data, "slots=1024")
    env = {"SIGMATRACE_MODE": mode, "MLX5EMU_LOG": "0"}
    with runner.traced(*options, *where, ranks=1, **env) as (traced,):
        judge.counts(traced)
        rings = judge.doorbells_one_by_one(traced)
        need(rings == ops * qps, f"{rings} doorbells of {ops * qps}")
        slots = "no slots asked for"
        if mode == "full":
            judge.inline_values(traced)
            slots = f"all {traced.node.total('slots')} slots with the value that the GPU wrote"
        took_s = traced.node.program["run_ns"] / 1e9
        size = traced.rank.file_bytes / 1e6
        delay = judge.forwarding(traced)
        _kernel(runner, traced, qps)
    return f"{rings} doorbells in {took_s:.2f} s, 0 lost; {slots}; {delay}; trace {size:.0f} MB"
