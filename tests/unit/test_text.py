"""Numbers for people."""

from __future__ import annotations

import pytest

from sigmatrace.text import byte_text, count_text, counted, listed, printable, time_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (5 << 60, "5 EiB")],
)
def test_bytes(value, text):
    assert byte_text(value) == text


def test_counts():
    assert count_text(1234567) == "1 234 567"
    assert count_text(-1000) == "-1 000"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 processes"), (1, "1 process"), (2000, "2 000 processes")]
)
def test_counts_with_a_noun(value, text):
    assert counted(value, "process", "processes") == text


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), ([*"abcd"], "a, b, and 2 more")],
)
def test_names_of_which_the_first_are_told(names, text):
    assert listed(names, 2) == text


def test_the_usual_plural():
    assert [counted(n, "op record") for n in (1, 7)] == ["1 op record", "7 op records"]


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.4, "999 ns"),
        (999.6, "1 us"),
        (1234, "1.23 us"),
        (701_052, "701 us"),
        (999_499, "999 us"),
        (999_700, "1 ms"),
        (3_200_000_000, "3.2 s"),
        (86_400_000_000_000, "86400 s"),
        (-1500, "-1.5 us"),
    ],
)
def test_lengths_of_time(ns, shown):
    assert time_text(ns) == shown


def test_names_cannot_steer_a_terminal_or_break_a_line():
    assert printable("höst-\u4e2d 1 234") == "höst-\u4e2d 1 234"
    assert printable("a\nb\x1b[31m\u202ec") == "a\\nb\\x1b[31m\\u202ec"
