"""Steps 1 to 3: every way of ringing and of setting up, millions of doorbells, two processes."""

from __future__ import annotations

from dataclasses import dataclass

from tests.rigs.mlx5.emulated import ALL, DIALECTS, ROOMY
from tests.rigs.mlx5.gpu import judge
from tests.rigs.mlx5.gpu.judge import Traced, need
from tests.rigs.mlx5.gpu.runner import Runner

_STALLS = (("MLX5EMU_STALL_US", "3000"), ("MLX5EMU_STALL_EACH_US", "3000"))


@dataclass(frozen=True)
class Case:
    """Options of gpu_pair and environment, and whether nothing may be lost."""

    options: tuple[str, ...]
    whole: bool = True
    env: tuple[tuple[str, str], ...] = ()
    ranks: int = 1

    @property
    def name(self) -> str:
        """For the verdict."""
        words = [word for word in self.options if word not in (ALL, ROOMY)]
        return " ".join([*words, *(f"{key}={value}" for key, value in self.env)])


def _dialects() -> list[Case]:
    return [Case((f"dialect={name}", f"uar={uar}")) for name, uar in DIALECTS.items()]


def _set_ups() -> list[Case]:
    ways = ("memory=dmabuf", "memory=host", "memory=host heap=host", "dci=1", "dci=1 av=long")
    more = ("receives=1", "group=16", "uar=shared", "uar=plain", "uar=plain dialect=doca")
    return [Case(tuple(way.split())) for way in (*ways, *more)]


def single(ops: int) -> list[Case]:
    """Of one process; `ops` of each of its eight threads."""
    sizes = (ALL, f"ops={ops}", "blocks=4", "threads=2", "qps=2", ROOMY)
    cases = [Case((*case.options, *sizes)) for case in (*_dialects(), *_set_ups())]
    cases.append(Case((ALL, f"ops={ops}", "qps=64", "blocks=64", "memory=host", "heap=host")))
    cases.append(Case((ALL, f"ops={ops}", "slots=64", "qps=2", "blocks=2"), False, _STALLS))
    for order in ("forward-first", "copy-first", "sync"):
        for slots in ("slots=32", "slots=256"):
            options = (ALL, f"ops={ops * 4}", slots)
            cases.append(Case(options, False, (("SIGMATRACE_DOORBELL", order),)))
    return cases


def wrap(ops: int) -> Case:
    """The 16-bit index wraps, where there are enough operations."""
    return Case(("mix=inline", f"ops={ops}", "group=64", "slots=32768", "heap=host"), False)


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
    with runner.traced(*case.options, ranks=case.ranks, **dict(case.env)) as found:
        for traced in found:
            judge.slot_by_slot(traced, whole=case.whole)
        slots = sum(traced.node.total("slots") for traced in found)
        rings = sum(traced.node.total("doorbells") for traced in found)
        missing = sum(traced.missing for traced in found)
    return f"{slots} slots, {rings} doorbells at the NIC, {missing} slots missing"


def doorbells_alone(runner: Runner, ops: int) -> str:
    """Order `off`: doorbells announce all slots, and none is read.

    Raises:
        WrongError: Something is not as it should be.
    """
    options = (ALL, f"ops={ops}", "blocks=4", "threads=2", "qps=2")
    with runner.traced(*options, SIGMATRACE_DOORBELL="off") as (traced,):
        judge.went_well(traced.node)
        need(not len(traced.rank.records(judge.SLOT)), "slots were read")
        announced = int(traced.rank.records(judge.DOORBELL)["slots"].sum())
        need(announced == traced.node.total("slots"), f"{announced} slots announced")
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
