"""What a user asks to be shown of a trace: options, read and refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sigmatrace.errors import ConfigError
from sigmatrace.trace_format import Op
from sigmatrace.window import Window

Ranges = tuple[tuple[int, int], ...]
"""Both ends included."""

_NUMBER = r"0[xX][0-9a-fA-F]+|0|[1-9][0-9]*"
_RANGES = "write numbers and ranges, as in 0-15,64"
_ALIASES = {
    "write": (Op.PUT, Op.PUT_DATA),
    "read": (Op.GET,),
    "receive": (Op.RECV,),
}


@dataclass(frozen=True)
class Choice:
    """What a user asked for; None: everything.

    Attributes:
        window: When.
        ranks: Ranges of ranks, both ends included.
        qps: Ranges of the numbers of queue pairs.
        ops: Operations.
    """

    window: Window | None = None
    ranks: Ranges | None = None
    qps: Ranges | None = None
    ops: frozenset[Op] | None = None

    @classmethod
    def parse(
        cls, at: str, window: str | None, ranks: str | None, qps: str | None, ops: str | None
    ) -> Choice:
        """Return the choice that a user wrote.

        Args:
            at: Where the options are, for messages ("export.perfetto").
            window: As ``Window.parse`` takes it.
            ranks: ``"0-15,64"``; like the others also in brackets, ``"[0-15,64]"``.
            qps: Likewise; also ``"0x11"``.
            ops: ``"send,write"``: names of ``Op``, in any case, and "write", "read", "receive".

        Raises:
            ConfigError: An option is not of this form.
        """
        return cls(
            None if window is None else Window.parse(f"{at}.window", window),
            None if ranks is None else _ranges(f"{at}.ranks", ranks),
            None if qps is None else _ranges(f"{at}.qps", qps),
            None if ops is None else _operations(f"{at}.ops", ops),
        )


def _ranges(option: str, text: str) -> Ranges:
    found = []
    for part in _listed(text):
        sides = re.fullmatch(rf"\s*({_NUMBER})\s*(?:-\s*({_NUMBER})\s*)?", part)
        if not sides:
            raise ConfigError(f"{option}: {part.strip()!r} is no number", _RANGES)
        first, last = (int(side, 0) for side in (sides[1], sides[2] or sides[1]))
        if first > last:
            raise ConfigError(f"{option}: {part.strip()!r} is empty", _RANGES)
        found.append((first, last))
    return tuple(found)


def _listed(text: str) -> list[str]:
    """Return the parts of a list, which may be in brackets, as lists of other options are."""
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1]
    return bare.split(",")


def _operations(option: str, text: str) -> frozenset[Op]:
    names = {**{op.name.lower(): (op,) for op in Op}, **_ALIASES}
    found: set[Op] = set()
    for word in _listed(text):
        known = names.get(word.strip().lower())
        if known is None:
            listed = ", ".join(sorted(names))
            raise ConfigError(f"{option}: unknown operation {word.strip()!r}", f"known: {listed}")
        found.update(known)
    return frozenset(found)
