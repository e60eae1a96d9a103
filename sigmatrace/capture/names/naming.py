"""What a layer tells of its objects, so that their names are equal at both ends.

A canonical name has the same bytes at both ends of a connection, in whatever process it is
worked out. A name that only means something on its host ends in ``@HOST``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sigmatrace.capture.names.fields import Fields, Objects
from sigmatrace.trace_format import Layer


class Names(NamedTuple):
    """What an endpoint is called.

    Attributes:
        local: Its own name, "" for none.
        peer: The other end's, of connected ones.
        av: Id of what resolves its channels' ``peer`` (``addresses``), 0 where that is an object.
    """

    local: str
    peer: str = ""
    av: int = 0


Ends = Callable[[int, Fields, Objects, str], Names]
"""From an object's id and fields, all objects and the host to its names."""


Addresses = Callable[[Objects, np.ndarray, str], list[tuple[int, int, str]]]


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
        addresses: From objects, channel records and host to rows (address vector, address,
            name).
    """

    endpoints: Mapping[str, Endpoint]
    others: frozenset[str] = frozenset()
    addresses: Addresses | None = None
