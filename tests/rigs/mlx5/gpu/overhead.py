"""Step 4: what tracing costs, by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.rigs.mlx5.emulated import Node
from tests.rigs.mlx5.gpu.judge import went_well
from tests.rigs.mlx5.gpu.runner import FAIL, NOT_RUN, PASS, Runner

NONE, FORWARD_FIRST = "no tracing", "forward-first"
SETTINGS = {
    NONE: None,
    "off": "off",
    FORWARD_FIRST: "forward-first",
    "copy-first 128": "copy-first",
    "sync": "sync",
}
OPERATIONS = {"write": "Put+Quiet", "read": "Get", "add": "FetchAdd", "pingpong": "Ping-Pong"}
PLACES = {
    "mirrored": "Send queues in GPU memory, with an equal copy in the host's that the NIC reads; "
    "the rest in pinned host memory: the NIC does not use the driver, as a real one does not",
    "host": "Send queues and all else in pinned host memory",
    "gpu": "Send queues and all else in GPU memory: NIC and tracer take turns in the driver, what "
    "a real NIC does not",
}
RATE_QPS, RATE_WINDOW = 8, 8
SHARES = ("p50", "p90", "p99")
_MOST_P50, _MOST_P99, _LEAST_RATE = 1.02, 1.15, 0.97


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        operations: Timed ones, after the warm-up.
        warmup: Operations before.
        repetitions: Of everything.
        rate: Operations of each queue pair for the rate; a tenth of them where the NIC is slow.
    """

    operations: int
    warmup: int
    repetitions: int
    rate: int


@dataclass
class Table:
    """Samples of one place of the rings.

    Attributes:
        memory: One of `PLACES`.
        samples: One number a repetition, by setting, operation and p50, p90, p99 or rate.
        missing: Slots that the traces do not tell, by setting.
        slots: Slots that were posted while traced, by setting.
    """

    memory: str
    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def add(self, setting: str, node: Node) -> None:
        """Takes what gpu_pair printed of each round."""
        for found in node.rounds:
            if found["mode"] == "run":
                done = sum(of["count"] for qp in found["qps"] for of in qp["operations"].values())
                named = {"rate": done * 1e9 / found["gpu_ns"]}
            else:
                named = {share: float(found["ns"][share]) for share in SHARES}
            operation = found["mode"] if found["mode"] == "pingpong" else found["kind"]
            for name, value in named.items():
                self.samples.setdefault((setting, operation, name), []).append(value)

    def middle(self, setting: str, operation: str, name: str) -> float:
        """Median of the repetitions; 0: not measured."""
        return median(self.samples.get((setting, operation, name), [0.0]))


@contextmanager
def _ran(
    runner: Runner, table: Table, setting: str, ranks: int, options: tuple[str, ...]
) -> Iterator[list[Node]]:
    order = SETTINGS[setting]
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


def _turn(runner: Runner, table: Table, size: Size, setting: str) -> None:
    """Each operation once: alone, with others outstanding, and between two processes."""
    slow = table.memory == "gpu"
    data = "heap=gpu" if slow else "heap=host"
    where = (f"memory={table.memory}", data, "bytes=8", "slots=1024")
    kinds = [kind for kind in OPERATIONS if kind != "pingpong"]
    each = (f"mix={','.join(kinds)}", f"rounds={len(kinds)}", "each=1")
    timed = (f"ops={size.warmup + size.operations}", f"warmup={size.warmup}")
    many = (f"ops={size.rate // (10 if slow else 1)}", f"window={RATE_WINDOW}")
    queues = (f"qps={RATE_QPS}", f"blocks={RATE_QPS}")
    for ranks, options in (
        (1, ("mode=time", *each, *timed)),
        (1, ("mode=run", *each, *many, *queues)),
        (2, ("mode=pingpong", *timed)),
    ):
        with _ran(runner, table, setting, ranks, (*options, *where)) as nodes:
            for node in nodes:
                went_well(node)
            table.add(setting, nodes[0])


def measure(runner: Runner, memory: str, size: Size) -> Table:
    """All settings in turn, again and again, each time beginning with the next one.

    Raises:
        WrongError: A program did not do what it should.
    """
    table, names = Table(memory), list(SETTINGS)
    for repetition in range(size.repetitions):
        first = repetition % len(names)
        for setting in (*names[first:], *names[:first]):
            _turn(runner, table, size, setting)
    return table


def judge(runner: Runner, table: Table) -> None:
    """One verdict for each operation, and one for what was recovered meanwhile."""
    point = f"forward-first within 2 % at p50, 15 % at p99, 97 % of the rate, rings: {table.memory}"
    for operation, name in OPERATIONS.items():
        shares = {
            share: table.middle(FORWARD_FIRST, operation, share)
            / (table.middle(NONE, operation, share) or 1.0)
            for share in (*SHARES, "rate")
        }
        alone = operation == "pingpong"
        good = shares["p50"] <= _MOST_P50 and shares["p99"] <= _MOST_P99
        good &= alone or shares["rate"] >= _LEAST_RATE
        text = f"p50 {shares['p50'] - 1:+.1%}, p99 {shares['p99'] - 1:+.1%}"
        text += "" if alone else f", rate {shares['rate']:.1%}"
        outcome = (PASS if good else FAIL) if runner.gpu else NOT_RUN
        runner.say(f"{point}: {name}", outcome, text)
    lost = {setting: table.missing[setting] for setting in table.missing if table.missing[setting]}
    outcome = FAIL if lost.get(FORWARD_FIRST) else PASS
    text = f"of {sum(table.slots.values())} slots; missing: {lost or 'none'}"
    runner.say(f"all slots recovered while this was measured, rings: {table.memory}", outcome, text)


def lines(table: Table, size: Size) -> list[str]:
    """The table, in Markdown."""
    rate = size.rate // (10 if table.memory == "gpu" else 1)
    text = (
        f"{size.operations} operations of 8 bytes after {size.warmup} of warm-up, one at a time, "
        f"by the GPU's globaltimer; median of {size.repetitions} repetitions, interleaved. "
        f"Rate: {RATE_QPS} queue pairs with {RATE_WINDOW} operations outstanding each, "
        f"{RATE_QPS * rate} operations. In brackets: against no tracing."
    )
    found = [
        f"### Rings: {table.memory}",
        "",
        f"{PLACES[table.memory]}. {text}",
        "",
        "| operation | setting | p50 ns | p90 ns | p99 ns | rate 1/s | p50 of each repetition |",
    ]
    found.append("|---|---|---|---|---|---|---|")
    for operation, name in OPERATIONS.items():
        for setting in SETTINGS:
            cells = []
            for share in (*SHARES, "rate"):
                value = table.middle(setting, operation, share)
                base = table.middle(NONE, operation, share)
                against = f" ({value / base - 1:+.1%})" if base and setting != NONE else ""
                cells.append(f"{value:,.0f}{against}" if value else "")
            each = sorted(table.samples.get((setting, operation, "p50"), []))
            cells.append(f"{each[0]:,.0f} to {each[-1]:,.0f}")
            found.append(f"| {name} | {setting} | {' | '.join(cells)} |")
    return found
