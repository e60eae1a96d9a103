"""How numbers look to people, in whatever this package prints, and that it can be printed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from sigmatrace.errors import OutputError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def byte_text(value: float) -> str:
    """Return bytes with a unit of 1024s: ``1.5 MiB``."""
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def count_text(value: int) -> str:
    """Return a count with thin groups: ``1 234 567``."""
    return f"{value:,}".replace(",", " ")


def counted(value: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 process``, ``2 000 processes``.

    Args:
        value: The count.
        one: The noun for one.
        many: The noun for all other counts; ``one`` with an s by default.
    """
    return f"{count_text(value)} {one if value == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the first of some names, and how many more there are: ``a, b, and 2 more``."""
    more = f", and {count_text(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def time_text(ns: float) -> str:
    """Return a length of time with the unit that suits it, in three digits: ``1.25 ms``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= 0.9995 * size:
            value = ns / size
            return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns"


def printable(text: str) -> str:
    """Return a text in one line, with what steers a terminal escaped: names may have anything."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def flush_stdout() -> None:
    """Write out what was printed.

    Raises:
        BrokenPipeError: Nobody reads on.
        OutputError: It cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        print_no_more()
        raise OutputError(f"stdout: {error.strerror}") from error


def print_no_more() -> None:
    """Let what is not written yet go nowhere: at the end of the process it would be tried again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_any_letters() -> None:
    """Let stdout and stderr escape what their encoding lacks; where one is closed, drop it all.

    Names of hosts and programs may have any letters.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
