"""Step: what tracing costs, by the GPU's own clock.

Every number is compared with that of no tracing in the same repetition: what changes slowly on the
machine is in both. The median of these ratios is told, with the interval that holds the true one at
95 %: a goal is met or missed when all of the interval is on one side of it, else undecided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import comb
from statistics import median

from tests.rigs.mlx5.emulated import Node
from tests.rigs.mlx5.gpu.judge import went_well
from tests.rigs.mlx5.gpu.runner import FAIL, NOT_RUN, PASS, UNDECIDED, Runner

NONE, FORWARD_FIRST = "no tracing", "forward-first"
REPETITIONS = 15


@dataclass(frozen=True)
class Setting:
    """A way of tracing.

    Attributes:
        order: `SIGMATRACE_DOORBELL`; None: no tracing.
        times: It is measured in so many of `REPETITIONS`, evenly.
    """

    order: str | None
    times: int

    def is_in(self, repetition: int) -> bool:
        """Whether it is measured then; all are in the first one."""
        return repetition * self.times % REPETITIONS < self.times


SETTINGS = {
    NONE: Setting(None, REPETITIONS),
    "off": Setting("off", 9),
    FORWARD_FIRST: Setting("forward-first", REPETITIONS),
    "copy-first 128": Setting("copy-first", 3),
    "sync": Setting("sync", 3),
}
OPERATIONS = {"write": "Put+Quiet", "read": "Get", "add": "FetchAdd", "pingpong": "Ping-Pong"}
PLACES = {
    "mirrored": "Send queues in GPU memory, with an equal copy in the host's that the NIC reads; "
    "the rest in pinned host memory: the NIC does not use the driver, as a real one does not",
    "host": "Send queues and all else in pinned host memory",
    "gpu": "Send queues and all else in GPU memory: NIC and tracer take turns in the driver, what "
    "a real NIC does not",
}
RATES = {"rate 8x8": (8, 8), "rate 1x64": (1, 64)}
"""Queue pairs, and operations outstanding on each."""
SHARES = ("p50", "p90", "p99")
COLUMNS = (*SHARES, *RATES)
GOALS = {"p50": 1.02, "p99": 1.15, **dict.fromkeys(RATES, 0.97)}
"""Ratios to no tracing: of times the most, of rates the least."""
MET, MISSED = "met", "missed"
_CONFIDENCE = 0.95
_SLOWER, _SLOWER_TIMES = 10, 2  # in GPU memory: so much less of the rate, and of the times
_ASKED_REPETITIONS, _ASKED_OPERATIONS, _ASKED_WARMUP = 5, 5000, 1000


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        operations: Timed ones, after the warm-up; half of them where the NIC is slow.
        warmup: Operations before.
        repetitions: At most `REPETITIONS`.
        rate: Operations of all 8 queue pairs for the rate; a tenth of them where the NIC is slow.
        deep: Of the only queue pair, for the other rate.
    """

    operations: int
    warmup: int
    repetitions: int
    rate: int
    deep: int

    def of_rate(self, qps: int) -> int:
        """Operations of each queue pair, where there are so many."""
        return self.deep if qps == 1 else self.rate // qps

    def of(self, memory: str) -> Size:
        """The same for a place of the rings."""
        if memory != "gpu":
            return self
        timed, warmup = self.operations // _SLOWER_TIMES, self.warmup // _SLOWER_TIMES
        rate = self.rate // _SLOWER
        return replace(self, operations=timed, warmup=warmup, rate=rate, deep=min(self.deep, rate))


@dataclass
class Table:
    """Samples of one place of the rings.

    Attributes:
        memory: One of `PLACES`.
        samples: By setting, operation and one of `COLUMNS`: the number of each repetition.
        missing: Slots that the traces do not tell, by setting.
        slots: Slots that were posted while traced, by setting.
    """

    memory: str
    samples: dict[tuple[str, str, str], dict[int, float]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def add(self, setting: str, repetition: int, rate: str, node: Node) -> None:
        """Takes what gpu_pair printed of each round; `rate` is the column of mode `run`."""
        for found in node.rounds:
            if found["mode"] == "run":
                done = sum(of["count"] for qp in found["qps"] for of in qp["operations"].values())
                named = {rate: done * 1e9 / found["gpu_ns"]}
            else:
                named = {share: float(found["ns"][share]) for share in SHARES}
            operation = found["mode"] if found["mode"] == "pingpong" else found["kind"]
            for name, value in named.items():
                self.samples.setdefault((setting, operation, name), {})[repetition] = value

    def middle(self, setting: str, operation: str, name: str) -> float:
        """Median of the repetitions; 0: not measured."""
        return median(self.samples.get((setting, operation, name), {0: 0.0}).values())

    def ratios(self, setting: str, operation: str, name: str) -> list[float]:
        """To no tracing, each within a repetition."""
        base = self.samples.get((NONE, operation, name), {})
        own = self.samples.get((setting, operation, name), {})
        return [own[i] / base[i] for i in own]

    def ratio(self, setting: str, operation: str, name: str) -> float:
        """Median of `ratios`; 1: not measured."""
        return median(self.ratios(setting, operation, name) or [1.0])

    def noise(self, operation: str, name: str) -> tuple[float, float]:
        """Least and most of no tracing, as ratios to its median."""
        samples = self.samples.get((NONE, operation, name), {0: 1.0}).values()
        return min(samples) / median(samples), max(samples) / median(samples)


@contextmanager
def _ran(
    runner: Runner, table: Table, setting: str, ranks: int, options: tuple[str, ...]
) -> Iterator[list[Node]]:
    order = SETTINGS[setting].order
    if order is None:
        with runner.plain(*options, ranks=ranks, MLX5EMU_LOG="0") as nodes:
            yield nodes
        return
    env = {"SIGMATRACE_DOORBELL": order, "MLX5EMU_LOG": "0"}
    with runner.traced(*options, ranks=ranks, **env) as found:
        for traced in found if order != "off" else ():
            table.missing[setting] = table.missing.get(setting, 0) + traced.missing
            table.slots[setting] = table.slots.get(setting, 0) + traced.node.total("slots")
        yield [traced.node for traced in found]


def _turn(runner: Runner, table: Table, size: Size, setting: str, repetition: int) -> None:
    """Each operation once: alone, with others outstanding, and between two processes."""
    data = "heap=gpu" if table.memory == "gpu" else "heap=host"
    where = (f"memory={table.memory}", data, "bytes=8", "slots=1024")
    kinds = [kind for kind in OPERATIONS if kind != "pingpong"]
    each = (f"mix={','.join(kinds)}", f"rounds={len(kinds)}", "each=1")
    timed = (f"ops={size.warmup + size.operations}", f"warmup={size.warmup}")
    runs = [("", 1, ("mode=time", *each, *timed)), ("", 2, ("mode=pingpong", *timed))]
    for rate, (qps, window) in RATES.items():
        many = (f"ops={size.of_rate(qps)}", f"window={window}", f"qps={qps}", f"blocks={qps}")
        runs.append((rate, 1, ("mode=run", *each, *many)))
    for rate, ranks, options in runs:
        with _ran(runner, table, setting, ranks, (*options, *where)) as nodes:
            for node in nodes:
                went_well(node)
            table.add(setting, repetition, rate, nodes[0])


def measure(runner: Runner, memory: str, size: Size) -> Table:
    """All settings in turn, again and again, each time beginning with the next one.

    Raises:
        WrongError: A program did not do what it should.
    """
    table = Table(memory)
    for repetition in range(size.repetitions):
        names = [name for name, how in SETTINGS.items() if how.is_in(repetition)]
        first = repetition % len(names)
        for setting in (*names[first:], *names[:first]):
            _turn(runner, table, size.of(memory), setting, repetition)
    return table


def _range(noise: tuple[float, float]) -> str:
    return f"{noise[0] - 1:+.1%} to {noise[1] - 1:+.1%}"


def interval(values: list[float]) -> tuple[float, float] | None:
    """Where the true median is at 95 %, by order statistics: no distribution is assumed.

    So many values lie below the true median as heads are thrown by a fair coin. None: there are too
    few values, less than 6.
    """
    count, below, tail, ordered = len(values), 0, 0.5 ** len(values), sorted(values)
    while 2 * tail <= 1 - _CONFIDENCE:
        below += 1
        tail += comb(count, below) / 2**count
    return (ordered[below - 1], ordered[count - below]) if below else None


def verdict(found: tuple[float, float] | None, column: str) -> str:
    """`MET`, `MISSED` or `UNDECIDED`, by the interval of a column's ratios."""
    if found is None:
        return UNDECIDED
    (low, high), goal = found, GOALS[column]
    if column in RATES:
        return MET if low >= goal else MISSED if high < goal else UNDECIDED
    return MET if high <= goal else MISSED if low > goal else UNDECIDED


def outcome_of(verdicts: list[str]) -> str:
    """Of an operation: one goal that is missed is enough, and all must be met."""
    if MISSED in verdicts:
        return FAIL
    return PASS if set(verdicts) == {MET} else UNDECIDED


def judge(runner: Runner, table: Table) -> None:
    """One verdict for each operation, and one for what was recovered meanwhile."""
    point = f"forward-first within 2 % at p50, 15 % at p99, 97 % of the rate, rings: {table.memory}"
    for operation, name in OPERATIONS.items():
        verdicts, parts = [], []
        for column in GOALS:
            ratios = table.ratios(FORWARD_FIRST, operation, column)
            if ratios:
                found = interval(ratios)
                verdicts.append(verdict(found, column))
                within = f" [{_range(found)}]" if found else ""
                parts.append(f"{column} {median(ratios) - 1:+.1%}{within} {verdicts[-1]}")
        outcome = outcome_of(verdicts) if runner.gpu else NOT_RUN
        runner.say(f"{point}: {name}", outcome, ", ".join(parts))
    lost = {setting: table.missing[setting] for setting in table.missing if table.missing[setting]}
    outcome = FAIL if lost.get(FORWARD_FIRST) else PASS
    text = f"of {sum(table.slots.values())} slots; missing: {lost or 'none'}"
    runner.say(f"all slots recovered while this was measured, rings: {table.memory}", outcome, text)


def _cell(table: Table, setting: str, operation: str, column: str) -> str:
    value = table.middle(setting, operation, column)
    if not value:
        return ""
    if setting == NONE:
        return f"{value:,.0f} ({_range(table.noise(operation, column))})"
    return f"{value:,.0f} ({table.ratio(setting, operation, column) - 1:+.1%})"


def _otherwise(own: Size) -> str:
    """What is not as it was asked for: 5 repetitions of 5000 operations after 1000."""
    found = []
    if (own.operations, own.warmup) != (_ASKED_OPERATIONS, _ASKED_WARMUP):
        found.append(
            f"operations are fewer than {_ASKED_OPERATIONS} after {_ASKED_WARMUP}, the NIC is slow"
        )
    few = [name for name, how in SETTINGS.items() if how.times < _ASKED_REPETITIONS]
    found.append(f"repetitions of {' and '.join(few)} are fewer than {_ASKED_REPETITIONS}")
    return f" Not as asked for: {'; '.join(found)}."


def lines(table: Table, size: Size) -> list[str]:
    """The table, in Markdown."""
    own = size.of(table.memory)
    times = ", ".join(
        f"{sum(how.is_in(i) for i in range(own.repetitions))} of {name}"
        for name, how in SETTINGS.items()
    )
    text = (
        f"{own.operations} operations of 8 bytes after {own.warmup} of warm-up, one at a time, by "
        f"the GPU's globaltimer. Rates: 8 queue pairs with 8 operations outstanding each, "
        f"{own.rate} operations, and one with 64, {own.deep} operations. Medians of repetitions "
        f"({times}), interleaved.{_otherwise(own)} In brackets: how far the repetitions without "
        f"tracing are from their median; of the other settings, the median of the ratios to no "
        f"tracing in the same repetition."
    )
    heads = ["operation", "setting", *(f"{share} ns" for share in SHARES)]
    heads += [f"{rate}, 1/s" for rate in RATES]
    found = [f"### Rings: {table.memory}", "", f"{PLACES[table.memory]}. {text}", ""]
    found += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for operation, name in OPERATIONS.items():
        for setting in SETTINGS:
            cells = [_cell(table, setting, operation, column) for column in COLUMNS]
            found.append(f"| {name} | {setting} | {' | '.join(cells)} |")
    return found
