"""A guest that takes its time stamp counter for a faster or slower one is found out."""

import pytest

from tests.rigs import tsc

DETECTED = "[    0.000000] tsc: Detected {} MHz processor"
REFINED = "[    3.506146] tsc: Refined TSC clocksource calibration: {} MHz"


def test_right_ones_pass() -> None:
    assert not tsc.fault([DETECTED.format(2596.128), REFINED.format(2596.109)], 2_596_128)


@pytest.mark.parametrize("refined", [480.7, 2540.0, 2660.0, 14018.0])
def test_wrong_ones_are_named(refined: float) -> None:
    log = [DETECTED.format(2596.128), REFINED.format(refined)]
    assert f"of {refined} MHz" in tsc.fault(log, 2_596_128)


def test_silence_is_a_fault() -> None:
    assert tsc.fault([], 2_596_128)


def test_two_measurements_of_the_host_agree() -> None:
    first, second = tsc.host_khz(), tsc.host_khz()
    assert first > 100_000
    assert abs(first / second - 1) < 0.002
