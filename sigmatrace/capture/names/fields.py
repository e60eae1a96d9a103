"""Typed access to the fields of an object; a file may hold anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

Fields = Mapping[str, Any]
Objects = Mapping[int, Fields]


def integer(fields: Fields, key: str, bits: int = 32) -> int:
    """Return an unsigned field, 0 if it is missing, of another type, or too large."""
    value = fields.get(key)
    return value if type(value) is int and 0 <= value < 1 << bits else 0


def text(fields: Fields, key: str) -> str:
    """Return a text field, "" if it is missing or of another type."""
    value = fields.get(key)
    return value if type(value) is str else ""


def binary(fields: Fields, key: str) -> bytes:
    """Return a binary field, empty if it is missing or of another type."""
    value = fields.get(key)
    return value if type(value) is bytes else b""


class AllObjects(dict[int, dict[str, Any]]):
    """All objects of a process, which know their types once they are complete."""

    @cached_property
    def by_type(self) -> Mapping[str, Objects]:
        """The objects by id, by type; worked out once."""
        found: dict[str, dict[int, Fields]] = defaultdict(dict)
        for key, fields in self.items():
            found[text(fields, "type")][key] = fields
        return dict(found)


def of_type(objects: Objects, kind: str) -> Objects:
    """Return the objects of one type, by id."""
    if isinstance(objects, AllObjects):
        return objects.by_type.get(kind, {})
    return {key: fields for key, fields in objects.items() if fields.get("type") == kind}


def lifetime(fields: Fields) -> tuple[int, int]:
    """Return when an object was made and when it was closed, in ticks of the TSC; 0: never."""
    return integer(fields, "t_tsc", 64), integer(fields, "closed_tsc", 64)
