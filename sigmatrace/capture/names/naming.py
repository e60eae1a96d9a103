"""What a layer tells of its objects, so that their names are equal at both ends.

A canonical name has the same bytes at both ends of a connection, in whatever process it is
worked out. A name that only means something on its host ends in ``@HOST``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from sigmatrace.capture.names.fields import Fields, Objects
from sigmatrace.trace_format import Layer

_T = TypeVar("_T")


@dataclass(frozen=True)
class Told:
    """What a process told of itself.

    Attributes:
        objects: Merged fields by object id.
        host: Its host.
    """

    objects: Objects
    host: str
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, work_out: Callable[[Objects], _T]) -> _T:
        """Return what a function makes of all objects; it is called once for all names."""
        if work_out not in self._known:
            self._known[work_out] = work_out(self.objects)
        found: _T = self._known[work_out]
        return found


class Seat(NamedTuple):
    """Where a queue pair is: the place of its port ("" = unknown), and its number there."""

    place: str = ""
    qpn: int = 0


class Names(NamedTuple):
    """What an endpoint is called.

    Attributes:
        local: Its own name, "" for none.
        peer: The other end's, of connected ones.
        av: Id of what resolves its channels' ``peer`` (``addresses``), 0 where that is an object.
        seat: Of a queue pair, what its own name says.
        peer_seat: Of a queue pair, what the other end's name says.
        is_lossy: Whether its transport may lose messages, or exchange them.
        first_psn: Of a queue pair, the number of the first packet that it sends, -1 unknown.
    """

    local: str
    peer: str = ""
    av: int = 0
    seat: Seat = Seat()
    peer_seat: Seat = Seat()
    is_lossy: bool = False
    first_psn: int = -1


Ends = Callable[[int, Fields, Told], Names]
"""From an object's id and fields to its names."""


Address: TypeAlias = tuple[int, int, str, str, int]
"""A row of the table ``addresses``: av, addr, name, place, qpn. There may be very many: of plain
tuples the garbage collector sees that they lead to nothing, and leaves them alone."""
Addresses = Callable[[Told, np.ndarray], list[Address]]


@dataclass(frozen=True)
class Endpoint:
    """How objects of one type are named.

    Attributes:
        layer: Layer whose channels they carry.
        ends: Its names.
        owner: Field with the id of the object whose name is meant when there is none.
    """

    layer: Layer
    ends: Ends
    owner: str = ""


@dataclass(frozen=True)
class Naming:
    """The object types of a layer.

    Attributes:
        endpoints: Types that channels refer to, or name their peer by.
        others: Types that are known and have no row of their own in ``endpoints``.
        addresses: From objects and channel records to rows.
    """

    endpoints: Mapping[str, Endpoint]
    others: frozenset[str] = frozenset()
    addresses: Addresses | None = None
