"""Step: what tracing costs, by the GPU's own clock.

Every number is compared with that of no tracing in the same repetition: what changes slowly on the
machine is in both. The median of these ratios is told, and beside it how far the numbers of no
tracing are from each other: less than that is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.rigs.mlx5.emulated import Node
from tests.rigs.mlx5.gpu.judge import went_well
from tests.rigs.mlx5.gpu.runner import FAIL, NOT_RUN, PASS, Runner

NONE, FORWARD_FIRST = "no tracing", "forward-first"


@dataclass(frozen=True)
class Setting:
    """A way of tracing.

    Attributes:
        order: `SIGMATRACE_DOORBELL`; None: no tracing.
        each: It is measured in every so many repetitions.
    """

    order: str | None
    each: int = 1


SETTINGS = {
    NONE: Setting(None),
    "off": Setting("off"),
    FORWARD_FIRST: Setting("forward-first"),
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
_MOST_P50, _MOST_P99, _LEAST_RATE = 1.02, 1.15, 0.97
_SLOWER, _SLOWER_TIMES = 10, 2  # in GPU memory: so much less of the rate, and of the times


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        operations: Timed ones, after the warm-up; half of them where the NIC is slow.
        warmup: Operations before.
        repetitions: Of everything.
        rate: Operations of each of 8 queue pairs for the rate, and eight times as many of one; a
            tenth of them where the NIC is slow.
    """

    operations: int
    warmup: int
    repetitions: int
    rate: int

    def of(self, memory: str) -> Size:
        """The same for a place of the rings."""
        if memory != "gpu":
            return self
        timed, warmup = self.operations // _SLOWER_TIMES, self.warmup // _SLOWER_TIMES
        return Size(timed, warmup, self.repetitions, self.rate // _SLOWER)


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

    def ratio(self, setting: str, operation: str, name: str) -> float:
        """Median of the ratios to no tracing, each within a repetition; 1: not measured."""
        base = self.samples.get((NONE, operation, name), {})
        own = self.samples.get((setting, operation, name), {})
        return median([own[i] / base[i] for i in own] or [1.0])

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
        many = (f"ops={size.rate * 8 // qps}", f"window={window}", f"qps={qps}", f"blocks={qps}")
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
        names = [name for name, how in SETTINGS.items() if repetition % how.each == 0]
        first = repetition % len(names)
        for setting in (*names[first:], *names[:first]):
            _turn(runner, table, size.of(memory), setting, repetition)
    return table


def _range(noise: tuple[float, float]) -> str:
    return f"{noise[0] - 1:+.1%} to {noise[1] - 1:+.1%}"


def judge(runner: Runner, table: Table) -> None:
    """One verdict for each operation, and one for what was recovered meanwhile."""
    point = f"forward-first within 2 % at p50, 15 % at p99, 97 % of the rate, rings: {table.memory}"
    for operation, name in OPERATIONS.items():
        columns = SHARES if operation == "pingpong" else COLUMNS
        ratios = {column: table.ratio(FORWARD_FIRST, operation, column) for column in columns}
        good = ratios["p50"] <= _MOST_P50 and ratios["p99"] <= _MOST_P99
        good &= all(ratios[rate] >= _LEAST_RATE for rate in RATES if rate in ratios)
        parts = [
            f"{column} {ratio - 1:+.1%} (no tracing: {_range(table.noise(operation, column))})"
            for column, ratio in ratios.items()
            if column != "p90"
        ]
        outcome = (PASS if good else FAIL) if runner.gpu else NOT_RUN
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


def lines(table: Table, size: Size) -> list[str]:
    """The table, in Markdown."""
    own = size.of(table.memory)
    few = -(-own.repetitions // SETTINGS["sync"].each)
    text = (
        f"{own.operations} operations of 8 bytes after {own.warmup} of warm-up, one at a time, by "
        f"the GPU's globaltimer. Rates: 8 queue pairs with 8 operations outstanding each, and one "
        f"with 64; {8 * own.rate} operations. Medians of {own.repetitions} repetitions ({few} of "
        f"copy-first and sync), interleaved. In brackets: how far the repetitions without tracing "
        f"are from their median; of the other settings, the median of the ratios to no tracing in "
        f"the same repetition."
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
