"""The results as a page: docs/gpu-results.md."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.rigs.mlx5.gpu.machine import Machine
from tests.rigs.mlx5.gpu.runner import Runner

_HEAD = """# Results on a GPU

Written by `make gpu-test`. The NIC is emulated (`tests/rigs/mlx5/`): its engine is a thread that
takes doorbells from ordinary memory, so no PCIe write to a device and no read by one is part of a
time. Everything else is real: kernels, memory, driver, tracer.
"""


def report(
    machine: Machine, runner: Runner, tables: list[str], begin_s: float, took_s: float
) -> str:
    """The whole page, in Markdown."""
    date = datetime.fromtimestamp(begin_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    cpus = runner.emulated.cpus
    pinned = (
        f"first process: program {cpus[0].program}, NIC {cpus[0].nic}, sweeper and copier "
        f"{cpus[0].repeater}; second: {cpus[1].program}, {cpus[1].nic}, {cpus[1].repeater}"
        if cpus
        else "threads not pinned"
    )
    rows = [
        ("date", f"{date}; took {took_s:.0f} s"),
        ("GPU", machine.gpu),
        ("driver", machine.driver),
        ("CUDA", machine.cuda),
        ("CUPTI", "there" if runner.cupti else "not there"),
        ("CPU", machine.cpu),
        ("processors", pinned),
    ]
    lines = [_HEAD, "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    lines += ["", "## Verdicts", "", "| | what | numbers |", "|---|---|---|"]
    for verdict in runner.verdicts:
        lines.append(f"| {verdict.outcome} | {verdict.point} | {verdict.text} |")
    if tables:
        lines += ["", "## Overhead", *tables]
    return "\n".join(lines) + "\n"
