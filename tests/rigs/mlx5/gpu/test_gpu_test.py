"""The test on a GPU, on the stand-in: all its steps, and that what is wrong is not passed over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.native import plain_reader
from tests.rigs.mlx5.emulated import Emulated
from tests.rigs.mlx5.gpu import cases, judge, overhead, trace
from tests.rigs.mlx5.gpu.__main__ import NO_GPU, STEPS, main
from tests.rigs.mlx5.gpu.judge import Traced, WrongError
from tests.rigs.mlx5.gpu.runner import FAIL, PASS, UNDECIDED, Runner

INLINE = ("mix=inline", "ops=40", "qps=2", "blocks=2", "window=1", "slots=256")


@pytest.fixture
def library(shim: Path) -> Path:
    """Folder of the tracer's libraries."""
    return shim.parent


@pytest.fixture
def traced(emulated: Emulated, shim: Path, tmp_path: Path) -> Iterator[Traced]:
    """A run of which everything is right."""
    runner = Runner(emulated, shim, tmp_path)
    with runner.traced(*INLINE) as (found,):
        judge.slot_by_slot(found)
        judge.counts(found)
        judge.inline_values(found)
        assert judge.doorbells_one_by_one(found) == 80
        yield found


def _changed(traced: Traced, schema: int, place: int) -> Traced:
    """One byte of a schema's first record differs."""
    chunks = dict(traced.rank.chunks)
    data = bytearray(chunks[schema][0])
    data[place] ^= 1
    chunks[schema] = [bytes(data), *chunks[schema][1:]]
    return replace(traced, rank=replace(traced.rank, chunks=chunks))


def _shortened(traced: Traced, schema: int) -> Traced:
    """The last record of a schema is missing."""
    chunks = dict(traced.rank.chunks)
    size = trace.dtype_of(schema).itemsize
    chunks[schema] = [*chunks[schema][:-1], chunks[schema][-1][:-size]]
    return replace(traced, rank=replace(traced.rank, chunks=chunks))


def test_the_reader_finds_what_the_plain_one_does(
    emulated: Emulated, library: Path, tmp_path: Path
) -> None:
    runner = Runner(emulated, library / "libsigmatrace_gpu.so", tmp_path)
    with runner.traced(*INLINE) as (found,):
        (plain,) = plain_reader.read_all(next(tmp_path.glob("*/trace")))
        for schema in (judge.OPERATION, judge.REQUEST, judge.DOORBELL, judge.SLOT):
            records = found.rank.records(schema)
            slow = plain.records(schema)
            assert len(records) == len(slow)
            for name in slow[0].keys() - {"thread"}:
                mine, theirs = records[name].tolist(), [record[name] for record in slow]
                assert sorted(mine) == sorted(theirs), name


@pytest.mark.parametrize(
    ("schema", "field"),
    [(judge.SLOT, "index"), (judge.SLOT, "w0"), (judge.OPERATION, "size_bytes")],
)
def test_a_record_that_differs_is_wrong(traced: Traced, schema: int, field: str) -> None:
    fields = trace.dtype_of(schema).fields
    assert fields is not None
    place = fields[field][1] + (2 if field == "w0" else 0)
    with pytest.raises(WrongError):
        judge.slot_by_slot(_changed(traced, schema, place))


def test_another_value_in_a_slot_is_wrong(traced: Traced) -> None:
    fields = trace.dtype_of(judge.SLOT).fields
    assert fields is not None
    with pytest.raises(WrongError, match="value"):
        judge.inline_values(_changed(traced, judge.SLOT, fields["w4"][1] + 4))


def test_missing_records_are_wrong(traced: Traced) -> None:
    with pytest.raises(WrongError):
        judge.slot_by_slot(_shortened(traced, judge.SLOT))
    with pytest.raises(WrongError):
        judge.inline_values(_shortened(traced, judge.SLOT))
    with pytest.raises(WrongError):
        judge.counts(_shortened(traced, judge.OPERATION))
    with pytest.raises(WrongError):
        judge.doorbells_one_by_one(_shortened(traced, judge.DOORBELL))


def test_what_the_trace_says_was_lost_is_wrong(traced: Traced) -> None:
    end = {**(traced.rank.end or {}), "lost": {"something": 3}}
    with pytest.raises(WrongError, match="something"):
        judge.counts(replace(traced, rank=replace(traced.rank, end=end)))


def _kernel_of(traced: Traced, start: int, duration: int) -> Traced:
    record = np.zeros(1, trace.dtype_of(judge.KERNEL))
    record["t_tsc"], record["duration_tsc"], record["name"] = start, duration, 9999
    record["blocks"], record["threads"] = 2, 1
    chunks = {**traced.rank.chunks, judge.KERNEL: [record.tobytes()]}
    named = [*traced.rank.objects, {"type": "name", "id": 9999, "name": "pair_run"}]
    return replace(traced, rank=replace(traced.rank, chunks=chunks, objects=named))


def test_a_kernel_must_enclose_its_doorbells(traced: Traced) -> None:
    times = traced.rank.records(judge.DOORBELL)["t_tsc"]
    first, span = int(times.min()), int(times.max() - times.min())
    assert judge.kernels(_kernel_of(traced, first - 5, span + 10), "pair_run", 2, 1)
    for start, duration in ((first + 1, span), (first, span - 1)):
        with pytest.raises(WrongError, match="outside"):
            judge.kernels(_kernel_of(traced, start, duration), "pair_run", 2, 1)
    with pytest.raises(WrongError, match="0 kernels"):
        judge.kernels(traced, "pair_run", 2, 1)


def test_all_steps_but_cases(
    emulated: Emulated, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cases are run one by one by test_traced.py."""
    page = tmp_path / "results.md"
    page.write_text("of a GPU")
    steps = ",".join(step for step in STEPS if step != "cases")
    rig = ["--rig", str(emulated.built.nic.parent), "--lib", str(library)]
    words = ["--stand-in", f"--steps={steps}", *rig, "--write", str(page)]
    assert main(words) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert FAIL not in printed
    for what in ("PASS      CUPTI's kernel", "two processes", "BFS scale 8, 4 processes"):
        assert what in printed
    for operation in ("Put+Quiet", "Get", "FetchAdd", "Ping-Pong"):
        assert printed.count(f"| {operation} | forward-first |") == 3
    assert page.read_text() == "of a GPU"
    assert "stays as it is" in printed


@pytest.mark.parametrize(
    ("words", "known"), [("--steps=cases,foo", "overhead"), ("--rings=foo", "mirrored")]
)
def test_what_is_unknown_is_refused_at_once(
    words: str, known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--stand-in", words])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "unknown: foo; choose from" in said and known in said


def _table(rows: dict[str, list[float]]) -> overhead.Table:
    table = overhead.Table("host")
    for setting, values in rows.items():
        samples = dict(zip((0, 3, 6) if len(values) == 3 else range(9), values, strict=True))
        table.samples[setting, "write", "p50"] = samples
    return table


def test_ratios_are_within_a_repetition() -> None:
    """The machine is slower from time to time: tracing is judged beside its own neighbour."""
    none = [100.0, 200.0, 300.0, 100.0, 200.0, 300.0, 100.0, 200.0, 300.0]
    table = _table({overhead.NONE: none, overhead.FORWARD_FIRST: [1.01 * ns for ns in none]})
    assert table.ratio(overhead.FORWARD_FIRST, "write", "p50") == pytest.approx(1.01)
    assert table.noise("write", "p50") == (0.5, 1.5)
    few = _table({overhead.NONE: none, "sync": [200.0, 200.0, 150.0]})
    assert few.ratio("sync", "write", "p50") == pytest.approx(2.0)
    assert few.ratio("sync", "read", "p50") == 1.0


def _median_within(low: int, high: int, count: int) -> float:
    """How probable it is that the median lies from the low-th to the high-th of so many values."""
    signs = itertools.product((False, True), repeat=count)
    below = [sum(one) for one in signs]
    return sum(low <= number < high for number in below) / len(below)


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (9, 2, 8), (15, 4, 12)])
def test_the_interval_holds_the_median_at_95_percent(count: int, low: int, high: int) -> None:
    values = [float(number) for number in range(count, 0, -1)]
    assert overhead.interval(values) == (low, high)
    assert _median_within(low, high, count) >= 0.95
    assert _median_within(low + 1, high - 1, count) < 0.95


def test_few_values_decide_nothing() -> None:
    assert overhead.interval([1.0] * 5) is None
    assert overhead.verdict(None, "p50") == UNDECIDED


@pytest.mark.parametrize(
    ("column", "low", "high", "told"),
    [
        ("p50", 0.9, 1.02, overhead.MET),
        ("p50", 1.0, 1.03, UNDECIDED),
        ("p50", 1.03, 1.05, overhead.MISSED),
        ("p99", 1.03, 1.05, overhead.MET),
        ("p99", 1.1, 1.2, UNDECIDED),
        ("rate 8x8", 0.97, 0.99, overhead.MET),
        ("rate 8x8", 0.9, 1.0, UNDECIDED),
        ("rate 1x64", 0.9, 0.96, overhead.MISSED),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(
    column: str, low: float, high: float, told: str
) -> None:
    assert overhead.verdict((low, high), column) == told


def _said(runner: Runner, ratios: list[float]) -> tuple[str, str]:
    """Outcome and text of Put+Quiet, whose times are so much of those without tracing."""
    on_gpu = replace(runner, emulated=replace(runner.emulated, gpu=True), verdicts=[])
    table = overhead.Table("host")
    for column in overhead.GOALS:
        own = ratios if column == "p50" else [1.0] * len(ratios)
        table.samples[overhead.NONE, "write", column] = dict.fromkeys(range(len(own)), 100.0)
        traced = {number: 100 * ratio for number, ratio in enumerate(own)}
        table.samples[overhead.FORWARD_FIRST, "write", column] = traced
    overhead.judge(on_gpu, table)
    return on_gpu.verdicts[0].outcome, on_gpu.verdicts[0].text


def test_what_the_interval_does_not_decide_is_neither_passed_nor_failed(
    emulated: Emulated, shim: Path, tmp_path: Path
) -> None:
    runner = Runner(emulated, shim, tmp_path)
    spread = [1.0 + (number - 7) / 100 for number in range(15)]
    outcome, text = _said(runner, [ratio + 0.01 for ratio in spread])
    assert outcome == UNDECIDED and "p50 +1.0% [-3.0% to +5.0%] undecided" in text
    assert _said(runner, [ratio - 0.03 for ratio in spread])[0] == PASS
    outcome, text = _said(runner, [ratio + 0.1 for ratio in spread])
    assert outcome == FAIL and "p50 +10.0% [+6.0% to +14.0%] missed" in text


def test_what_decides_is_repeated_most() -> None:
    times = {
        name: sum(how.is_in(number) for number in range(overhead.REPETITIONS))
        for name, how in overhead.SETTINGS.items()
    }
    assert list(times.values()) == [15, 9, 15, 3, 3]
    text = overhead.lines(overhead.Table("gpu"), overhead.Size(5000, 1000, 15, 40_000, 10_000))[2]
    assert "15 of no tracing, 9 of off, 15 of forward-first, 3 of copy-first 128" in text
    assert "2500 operations of 8 bytes after 500" in text
    assert "operations are fewer than 5000 after 1000" in text
    assert "repetitions of copy-first 128 and sync are fewer than 5" in text


def test_slots_that_were_read_are_no_doorbells_alone(traced: Traced) -> None:
    with pytest.raises(WrongError, match="were read"):
        judge.doorbells_alone(traced)


def test_a_slow_copier_recovers_something(traced: Traced) -> None:
    """Where all is counted as not copied, nothing was seen of the slots themselves."""
    slots = np.zeros(1, trace.dtype_of(judge.SLOT))
    slots["kind"] = judge.INVALID
    chunks = {**traced.rank.chunks, judge.OPERATION: [], judge.REQUEST: []}
    chunks[judge.SLOT] = [slots.tobytes()]
    first, *others = traced.rank.objects_of("mlx5_qp").items()
    objects = [
        *traced.rank.objects,
        {"type": "mlx5_qp", "id": first[0], "uncopied_slots": traced.node.total("slots") - 1},
        *({"type": "mlx5_qp", "id": other, "uncopied_slots": 0} for other, _ in others),
    ]
    nothing = replace(traced, rank=replace(traced.rank, chunks=chunks, objects=objects))
    with pytest.raises(WrongError, match="nothing was recovered"):
        cases.overwritten(nothing)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([]) == NO_GPU
    (line,) = capsys.readouterr().out.splitlines()
    assert "no GPU here" in line
