"""What a layer tells of its objects, so that their names are equal at both ends.

A canonical name has the same bytes at both ends of a connection, in whatever process it is
worked out. A name that only means something on its host ends in ``@HOST``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sigmatrace.capture.names.fields import Fields, Objects
from sigmatrace.schema import Layer

Ends = Callable[[Fields, Objects, str], tuple[str, str]]
"""From an object's fields, all objects and the host to its own name and its peer's."""


@dataclass(frozen=True)
class Endpoint:
    """How objects of one type are named.

    Attributes:
        layer: Layer whose channels they carry.
        ends: Own name and, of connected ones, the peer's; "" for none.
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
        addresses: From objects and host to rows (address vector, address, name).
    """

    endpoints: Mapping[str, Endpoint]
    others: frozenset[str] = frozenset()
    addresses: Callable[[Objects, str], list[tuple[int, int, str]]] | None = field(default=None)
