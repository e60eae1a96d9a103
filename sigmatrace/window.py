"""Windows of time, as a user writes them: ``10s..12.5s``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from sigmatrace.errors import ConfigError

UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
EVER_NS = 2**62
"""No event is as far from 1970, in ns."""
_MOMENT = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ns|us|ms|s)?")
_UNIX_NS_MIN = 10**16  # 1970-04-26; what is smaller lacks its unit
_FORM = (
    "write BEGIN..END, as in 10s..12.5s (s, ms, us, ns after the run's zero; or Unix time in ns)"
)


@dataclass(frozen=True)
class Window:
    """A time from ``begin`` until before ``end``; each (value in ns, whether that is Unix time).

    Attributes:
        begin: None: from the beginning on.
        end: None: until the end.
        written: What the user wrote, ``OPTION=BEGIN..END``.
    """

    begin: tuple[int, bool] | None = None
    end: tuple[int, bool] | None = None
    written: str = ""

    @classmethod
    def parse(cls, option: str, text: str) -> Window:
        """Return the window that a user wrote.

        Args:
            option: Its name, for messages.
            text: ``BEGIN..END``. A side is a number with a unit, after the run's zero; or a
                number of at least 17 digits, Unix time in ns; or nothing: no limit.

        Raises:
            ConfigError: It is no window, or it is empty.
        """
        begin, dots, end = map(str.strip, text.partition(".."))
        if not dots or not (begin or end):
            raise ConfigError(f"{option}={text} is no window", _FORM)
        made = cls(_side(option, begin), _side(option, end), f"{option}={text}")
        if not made._is_mixed:
            made.at(0)  # whatever the run's zero is
        return made

    def at(self, base_ns: int) -> tuple[int, int]:
        """Return begin and end in Unix ns.

        Args:
            base_ns: Unix ns of the run's zero.

        Raises:
            ConfigError: It is empty, as may turn out here where one side alone is Unix time.
        """
        begin, end = _at(self.begin, base_ns, -EVER_NS), _at(self.end, base_ns, EVER_NS)
        if begin >= end:
            zero = f" (the run's zero is {base_ns})" if self._is_mixed else ""
            raise ConfigError(f"{self.written} is empty{zero}", "its end must be after its begin")
        return begin, end

    @property
    def is_unix(self) -> bool:
        """Whether it is Unix time alone, so that the run's zero does not matter."""
        return all(side is None or side[1] for side in (self.begin, self.end))

    @property
    def _is_mixed(self) -> bool:
        """Whether one side is Unix time, and the other after the run's zero."""
        return bool(self.begin and self.end and self.begin[1] != self.end[1])


def text_of(begin_ns: int, end_ns: int, base_ns: int) -> str:
    """Return a window as a user would write it, after the run's zero.

    Args:
        begin_ns: Unix ns, ``-EVER_NS``: no limit.
        end_ns: Unix ns, ``EVER_NS``: no limit.
        base_ns: Unix ns of the run's zero.
    """
    begin = "" if begin_ns <= -EVER_NS else _seconds(begin_ns - base_ns)
    end = "" if end_ns >= EVER_NS else _seconds(end_ns - base_ns)
    return f"{begin}..{end}"


def duration_ns(text: str) -> int | None:
    """Return a length of time that a user wrote as a number with its unit, in ns; None: it is none.

    What is below 1 ns is cut off.
    """
    found = _MOMENT.fullmatch(text)
    if not found or found[2] is None or text.startswith("-"):
        return None
    return int(Decimal(found[1]) * UNITS_NS[found[2]])


def _side(option: str, text: str) -> tuple[int, bool] | None:
    if not text:
        return None
    found = _MOMENT.fullmatch(text)
    if not found:
        raise ConfigError(f"{option}: {text!r} is no time", _FORM)
    number, unit = found.groups()
    if unit is None:
        if "." in number or int(number) < _UNIX_NS_MIN:
            raise ConfigError(f"{option}: {text!r} has no unit", _FORM)
        value = int(number)
    else:
        value = int(Decimal(number) * UNITS_NS[unit])
    if abs(value) >= EVER_NS:
        raise ConfigError(f"{option}: {text!r} is beyond any run", _FORM)
    return value, unit is None


def _at(side: tuple[int, bool] | None, base_ns: int, ever_ns: int) -> int:
    if side is None:
        return ever_ns
    value, is_unix = side
    return value if is_unix else base_ns + value


def _seconds(ns: int) -> str:
    whole = format(Decimal(ns) / 10**9, "f")
    return (whole.rstrip("0").rstrip(".") if "." in whole else whole) + "s"
