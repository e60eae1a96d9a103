"""How a recording ended: the end item of a rank file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sigmatrace.capture.bodies import Decoder, ItemError
from sigmatrace.capture.header import number
from sigmatrace.capture.names.fields import integer, text

COMPLETE = ("exit", "stop")
"""Reasons of end items after which nothing is missing."""


@dataclass(frozen=True)
class End:
    """Totals of a process, from its end item.

    Attributes:
        reason: Why the recording ended.
        written: Records written by schema.
        dropped: Records dropped by schema.
        lost: What could not be recorded, by reason.
    """

    reason: str
    written: Mapping[int, int]
    dropped: Mapping[int, int]
    lost: Mapping[str, int]


def from_body(raw: bytes, decoder: Decoder) -> End:
    """Return what the body of an end item tells.

    Raises:
        ItemError: It cannot be decoded, or tells no totals.
    """
    fields = decoder.decode(raw)
    totals, lost = fields.get("schemas"), fields.get("lost")
    if not isinstance(totals, dict):
        raise ItemError("an end item without totals")
    by_schema = {number(key): total for key, total in totals.items() if isinstance(total, dict)}
    return End(
        reason=text(fields, "reason"),
        written={key: integer(total, "written", 64) for key, total in by_schema.items()},
        dropped={key: integer(total, "dropped", 64) for key, total in by_schema.items()},
        lost={key: integer(lost, key, 64) for key in lost} if isinstance(lost, dict) else {},
    )
