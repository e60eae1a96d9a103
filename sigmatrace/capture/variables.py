"""The variables ``SIGMATRACE_*``: which there are, and what their values may be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sigmatrace.capture.libs import LIB_DIR_VARIABLE
from sigmatrace.errors import ConfigError

_PREFIX = "SIGMATRACE_"
_OF_OPTIONS = ("OUT", "RUN_ID", "MODE", "LAYERS", "CLOCK")
_CPU = r"\d{1,4}(-\d{1,4})?"
_CPUS = re.compile(rf"{_CPU}(,{_CPU})*", re.ASCII)
_CPUS_MAX = 1024  # CPU_SETSIZE


@dataclass(frozen=True)
class _Value:
    """What a variable may be: a text of it, and whether one is."""

    text: str
    fits: Callable[[str], bool]


def _choice(*words: str, fold: bool = False) -> _Value:
    return _Value(
        f"choose from {', '.join(words)}", lambda text: (text.lower() if fold else text) in words
    )


def _number(low: int, high: int) -> _Value:
    digits = re.compile(r"\d{1,9}", re.ASCII)
    return _Value(
        f"a number from {low} to {high}",
        lambda text: bool(digits.fullmatch(text)) and low <= int(text) <= high,
    )


def _is_cpus(text: str) -> bool:
    if not _CPUS.fullmatch(text):
        return False
    ranges = [[int(number) for number in part.split("-")] for part in text.split(",")]
    return all(part[0] <= part[-1] < _CPUS_MAX for part in ranges)


# As the native side reads them: core/config.c, gpu/config.c and gpu/cupti.c.
_SETTINGS: dict[str, _Value] = {
    "SEGMENT_KIB": _number(4, 32 << 10),
    "MAX_CHANNELS": _number(1, 1 << 22),
    "WRITER": _choice("thread", "inline", fold=True),
    "DOORBELL": _choice("forward-first", "copy-first", "sync", "off"),
    "DOORBELL_BATCH": _number(1, 32768),
    "POLL_CPUS": _Value("CPUs of the sweeper and the copier, like 2-3 or 2,8", _is_cpus),
    "CUPTI": _Value(
        "off, or the name or path of a libcupti.so",
        lambda text: text == "off" or "/" in text or ".so" in text,
    ),
}
KNOWN = (*(_PREFIX + name for name in (*_OF_OPTIONS, *_SETTINGS)), LIB_DIR_VARIABLE)
"""All names."""


def check(environment: Mapping[str, str]) -> list[str]:
    """Refuse wrong values of the variables that have no option, and find unknown names.

    Args:
        environment: The launcher's. An empty value is none.

    Returns:
        A warning for each variable that nothing reads.

    Raises:
        ConfigError: A value is wrong.
    """
    for name, value in _SETTINGS.items():
        given = environment.get(_PREFIX + name)
        if given and not value.fits(given):
            raise ConfigError(f"{_PREFIX}{name}={given}", value.text)
    unknown = sorted(x for x in environment if x.startswith(_PREFIX) and x not in KNOWN)
    return [_unknown(name) for name in unknown]


def _unknown(name: str) -> str:
    rests = [known.removeprefix(_PREFIX) for known in KNOWN]
    near = difflib.get_close_matches(name.removeprefix(_PREFIX).upper(), rests, n=1)
    meant = f"; do you mean {_PREFIX}{near[0]}?" if near else ""
    return f"nothing reads the variable {name}{meant}"
