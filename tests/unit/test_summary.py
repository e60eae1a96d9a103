"""What the closing summary says of what could not be watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sigmatrace import ledger, summary
from sigmatrace.capture.account import Account, SchemaAccount
from sigmatrace.trace_format import Schema
from tests.factories import make_run

NO_CUDA = "layer cuda is not chosen"


def lines(run, doorbells=0, kernels=0):
    schemas = {schema.name.lower(): SchemaAccount() for schema in Schema}
    schemas["doorbell"].read, schemas["kernel"].read = doorbells, kernels
    book = ledger.build(Account([], schemas, []), {}, {})
    text = summary.text(run, book, [], {}, {}, Path("out"))
    return [line for line in text.splitlines() if line.startswith(("registers", "kernels"))]


def times(facts, window=None):
    schemas = {schema.name.lower(): SchemaAccount() for schema in Schema}
    book = ledger.build(Account([], schemas, []), {}, {})
    if window:
        begin_ns, end_ns = window
        chunks = {"chunks_read": 0, "chunks_not_read": 5}
        book["capture"]["window"] = {"begin_ns": begin_ns, "end_ns": end_ns, **chunks}
    text = summary.text(make_run(facts, processes=[{}]), book, [], {}, {}, Path("out"))
    return [line.strip() for line in text.splitlines() if "0s..0.07" in line]


ZERO = 1_800_000_000_000_000_000
FACTS = {"base_ns": ZERO, "last_ns": ZERO + 78_627_155}
LASTS = "time       0s..0.078627155s"
OUTSIDE = "nothing lies in it: the run is 0s..0.078627155s, name a window within that"


def test_every_summary_says_how_long_the_run_lasted():
    assert times(FACTS) == [LASTS]
    assert times({}) == []


@pytest.mark.parametrize(
    ("begin", "end", "is_outside"),
    [
        (-9, 0, True),
        (-9, 1, False),
        (78_627_155, 10**9, False),
        (78_627_156, 10**9, True),
        (5, 6, False),
    ],
)
def test_a_window_outside_of_the_run_is_called_that(begin, end, is_outside):
    said = times(FACTS, (ZERO + begin, ZERO + end))
    assert said == [LASTS] + [OUTSIDE] * is_outside


def uar(reason="", **more):
    return {"passed_through": reason, "shadow": 0 if reason else 4096, **more}


def test_registers_that_were_not_watched_are_named_with_the_reason_and_what_to_do():
    uars = [uar(NO_CUDA), uar(NO_CUDA, proc=1), uar(), uar("a reason of a later release")]
    assert lines(make_run(processes=[{}, {}], uars=uars)) == [
        "registers  2 of 4 not watched, their doorbells are not in the trace: "
        f"{NO_CUDA} (--layers gpu chooses both, mlx5dv and cuda)",
        "registers  1 of 4 not watched, their doorbells are not in the trace: "
        "a reason of a later release",
    ]
    assert lines(make_run(processes=[{}], uars=[uar()])) == []


def test_other_ways_to_a_register_are_named():
    assert lines(make_run(processes=[{}], uars=[uar(), uar(exposed="exported as dmabuf")])) == [
        "registers  1 of 2 with another way to them, whose doorbells are not seen: "
        "exported as dmabuf"
    ]


def test_a_trace_without_kernels_says_why():
    rows = [{"proc": proc, "reason": "no CUPTI"} for proc in (0, 2)]
    run = make_run(processes=[{}, {}, {}], kernels_not_recorded=rows)
    assert lines(run, doorbells=3) == ["kernels    not recorded in 2 of 3 processes: no CUPTI"]


@pytest.mark.parametrize(("doorbells", "kernels", "count"), [(3, 0, 1), (3, 1, 0), (0, 0, 0)])
def test_no_kernels_without_a_reason(doorbells, kernels, count):
    found = lines(make_run(processes=[{}]), doorbells, kernels)
    assert len(found) == count
    assert all("has not ended when its process ends" in line for line in found)


@pytest.mark.parametrize("reason", summary._ADVICE)
def test_advice_is_for_reasons_that_capture_gives(reason):
    source = Path(summary.__file__).parent / "capture/native/gpu/uar.c"
    assert f'"{reason}"' in source.read_text()
