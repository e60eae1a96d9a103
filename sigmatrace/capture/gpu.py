"""What the launcher says of operations that a GPU starts by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sigmatrace.capture.report import Captured
from sigmatrace.text import counted

_NO_CUDA = "layer cuda is not chosen"  # as gpu/uar.c says it


def instead(found: Sequence[Captured], environment: Mapping[str, str]) -> list[str]:
    """Return what was recorded where no operation was, and what was not watched; a line each.

    Args:
        found: What each process recorded.
        environment: The launcher's.
    """
    return [*_doorbells(found, environment), *_kernels(found), *_unwatched(found)]


def _doorbells(found: Sequence[Captured], environment: Mapping[str, str]) -> Iterator[str]:
    doorbells = sum(one.doorbells for one in found)
    if not doorbells:
        return
    if sum(one.unread for one in found) < doorbells:
        why = "but no operation that moves data was found behind them"
    elif environment.get("SIGMATRACE_DOORBELL") == "off":
        why = "WQEs not read: SIGMATRACE_DOORBELL=off"
    else:
        why = "WQEs not read: it is not known where the rings of their queue pairs lie"
    yield f"{counted(doorbells, 'doorbell')} recorded, {why}"


def _kernels(found: Sequence[Captured]) -> Iterator[str]:
    kernels = sum(one.kernels for one in found)
    if kernels:
        yield f"{counted(kernels, 'kernel')} recorded"


def _unwatched(found: Sequence[Captured]) -> Iterator[str]:
    reasons = sum((Counter(one.unwatched) for one in found), Counter[str]())
    for reason, count in reasons.items():
        advice = "; use --layers gpu" if reason == _NO_CUDA else ""
        yield f"{counted(count, 'register')} of NICs not watched: {reason}{advice}"
