from __future__ import annotations

import pytest

from sigmatrace.errors import ConfigError
from sigmatrace.window import EVER_NS, Window, text_of

BASE = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("10s..12.5s", BASE + 10 * 10**9, BASE + 12_500_000_000),
        ("1us..2ms", BASE + 1000, BASE + 2_000_000),
        ("7ns..8ns", BASE + 7, BASE + 8),
        (" -1.5s .. 0s ", BASE - 1_500_000_000, BASE),
        ("..3s", -EVER_NS, BASE + 3 * 10**9),
        ("3s..", BASE + 3 * 10**9, EVER_NS),
        (f"{BASE + 5}..{BASE + 9}", BASE + 5, BASE + 9),
        (f"{BASE + 5}..9ns", BASE + 5, BASE + 9),
    ],
)
def test_windows_are_read(text, begin, end):
    assert Window.parse("window", text).at(BASE) == (begin, end)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10s", "is no window"),
        ("..", "is no window"),
        ("", "is no window"),
        ("1..2", "'1' has no unit"),
        ("1.5..2s", "'1.5' has no unit"),
        ("1s..soon", "'soon' is no time"),
        ("1min..2min", "'1min' is no time"),
        ("1s...2s", "'.2s' is no time"),
        ("2s..2s", "is empty"),
        ("1ms..2us", "is empty"),
        ("1s..99999999999s", "is beyond any run"),
    ],
)
def test_what_is_no_window_is_refused_in_one_line(text, why):
    with pytest.raises(ConfigError) as error:
        Window.parse("export.perfetto.window", text)
    assert why in str(error.value)
    assert str(error.value).startswith("export.perfetto.window")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [f"{BASE + 10}..10ns", f"10ns..{BASE + 3}", f"{BASE + 1}..-5ms"])
def test_a_window_that_turns_out_to_be_empty_is_refused(text):
    window = Window.parse("window", text)
    with pytest.raises(ConfigError) as error:
        window.at(BASE)
    zero = f"the run's zero is {BASE}"
    assert str(error.value) == f"window={text} is empty ({zero}): its end must be after its begin"


@pytest.mark.parametrize("text", ["10s..12.5s", "..0.000000007s", "-3s..", "0s..100s"])
def test_a_window_is_written_as_it_is_read(text):
    assert text_of(*Window.parse("window", text).at(BASE), BASE) == text
