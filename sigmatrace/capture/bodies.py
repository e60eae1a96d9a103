"""The bodies of items other than chunks: msgpack maps."""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import Any

import msgpack

from sigmatrace.trace_format import ITEM_BODY_MAX_BYTES

_FIXMAP, _MAPS, _KEYS = 0x80, (0xDE, 0xDF), (str, bytes)
_SAFELY: dict[str, Any] = {
    "raw": False,
    "strict_map_key": True,
    "max_ext_len": 0,
    "unicode_errors": "replace",
}
_decoded = functools.partial(msgpack.unpackb, **_SAFELY)
_READ_BYTES = 8 << 10


class ItemError(ValueError):
    """The body of a whole item is not what the format says."""


def value(raw: bytes) -> Any:
    """Decode a value that ``Decoder.decode`` left as it is encoded.

    Raises:
        ItemError: It has keys that are no text, or it holds extension types.
    """
    try:
        return _decoded(raw)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ItemError(f"the body cannot be decoded: {error!r}") from error


class Decoder:
    """Decodes bodies of items one by one; several cost less than with a decoder each.

    Nothing is allocated that a body's own bytes do not pay for: the structure is walked once
    before anything is built.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        # It takes `read_size` at once, and more when it needs it.
        self._walker = msgpack.Unpacker(max_buffer_size=ITEM_BODY_MAX_BYTES, read_size=_READ_BYTES)
        self._fed = 0

    def decode(self, raw: bytes, encoded: Container[str] = ()) -> dict[str, Any]:
        """Return the map that a body is.

        Args:
            raw: The body.
            encoded: Keys whose values are left as they are encoded, for ``value``.

        Raises:
            ItemError: It is not one msgpack map with text keys, or it holds extension types.
        """
        walker = self._walker
        self._fed += len(raw)
        try:
            walker.feed(raw)
            walker.skip()
            if walker.tell() != self._fed:
                raise ItemError("the body is not one msgpack object")
            decoded = _apart(raw, encoded) if encoded else _decoded(raw)
        except (ValueError, msgpack.UnpackException, RecursionError) as error:
            self._begin()  # the walker may wait for the rest of an object
            if isinstance(error, ItemError):
                raise
            raise ItemError(f"the body cannot be decoded: {error!r}") from error
        if not isinstance(decoded, dict):
            raise ItemError("the body is not a map")
        return decoded


def _apart(raw: bytes, encoded: Container[str]) -> Any:
    """Decode one msgpack object; if it is a map, some of its values stay encoded."""
    if raw[0] & 0xF0 != _FIXMAP and raw[0] not in _MAPS:
        return _decoded(raw)
    unpacker = msgpack.Unpacker(max_buffer_size=len(raw), **_SAFELY)
    unpacker.feed(raw)
    found = {}
    for _ in range(unpacker.read_map_header()):
        key = unpacker.unpack()
        if type(key) not in _KEYS:  # this raises
            return _decoded(raw)
        if key in encoded:
            begin = unpacker.tell()
            unpacker.skip()
            found[key] = raw[begin : unpacker.tell()]
        else:
            found[key] = unpacker.unpack()
    return found
