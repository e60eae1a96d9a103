"""Step 4: what tracing costs, by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.rigs.mlx5.emulated import Node
from tests.rigs.mlx5.gpu.judge import need, went_well
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
WINDOW = 64
SHARES = ("p50", "p90", "p99")
_MOST_P50, _MOST_P99, _LEAST_RATE = 1.02, 1.15, 0.97


@dataclass(frozen=True)
class Size:
    """How much is measured: operations after the warm-up, the warm-up, repetitions."""

    operations: int
    warmup: int
    repetitions: int


@dataclass
class Table:
    """Samples of one place of the rings.

    Attributes:
        memory: Of rings and data: "host" or "gpu".
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
            if found["window"]:
                named = {"rate": float(found["per_second"])}
            else:
                named = {share: float(found["ns"][share]) for share in SHARES}
            operation = found["kind"] if found["mode"] == "time" else found["mode"]
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
    """Each operation once: alone and with others outstanding, then between two processes."""
    where = (f"memory={table.memory}", f"heap={table.memory}", "bytes=8", "slots=1024")
    how = (f"ops={size.warmup + size.operations}", f"warmup={size.warmup}", *where)
    kinds = [kind for kind in OPERATIONS if kind != "pingpong"]
    rounds = (f"mix={','.join(kinds)}", f"rounds={2 * len(kinds)}", f"window={WINDOW}")
    for ranks, options in ((1, ("mode=time", *rounds)), (2, ("mode=pingpong",))):
        with _ran(runner, table, setting, ranks, (*options, *how)) as nodes:
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
    point = (
        f"forward-first within 2 % at p50, 15 % at p99, 97 % of the rate, rings in {table.memory}"
    )
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
    runner.say(
        f"all slots recovered while this was measured, rings in {table.memory}", outcome, text
    )


def lines(table: Table, size: Size) -> list[str]:
    """The table, in Markdown."""
    where = {"host": "pinned host memory", "gpu": "GPU memory"}[table.memory]
    text = (
        f"{size.operations} operations of 8 bytes after {size.warmup} of warm-up, by the GPU's "
        f"globaltimer; median of {size.repetitions} repetitions, settings interleaved. Rings and "
        f"data in {where}. Rate: {WINDOW} operations outstanding. In brackets: against no tracing."
    )
    found = [text, "", "| operation | setting | p50 ns | p90 ns | p99 ns | rate 1/s |"]
    found.append("|---|---|---|---|---|---|")
    for operation, name in OPERATIONS.items():
        for setting in SETTINGS:
            cells = []
            for share in (*SHARES, "rate"):
                value = table.middle(setting, operation, share)
                base = table.middle(NONE, operation, share)
                against = f" ({value / base - 1:+.1%})" if base and setting != NONE else ""
                cells.append(f"{value:,.0f}{against}" if value else "")
            found.append(f"| {name} | {setting} | {' | '.join(cells)} |")
    need(len(found) > 4, "no table")
    return found
