"""Numbers for people."""

from __future__ import annotations

import pytest

from sigmatrace.text import byte_text, count_text, counted


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


def test_the_usual_plural():
    assert [counted(n, "op record") for n in (1, 7)] == ["1 op record", "7 op records"]
