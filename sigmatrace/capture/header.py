"""Who wrote a rank file: its header item, or, if that is damaged, its name."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sigmatrace.capture.bodies import Decoder, ItemError, value
from sigmatrace.capture.names.fields import integer, text
from sigmatrace.errors import ChunkFormatError
from sigmatrace.trace_format import FORMAT_NAME, FORMAT_VERSION, RECORDS, record_fields

_NAME = re.compile(r"(?P<host>.+)-(?P<pid>\d{1,10})-(?P<start>\d{1,19})\.msgpack")
_ALIKE = ("schemas", "calls")
"""What the headers of a run have in common, and what is most of them: looked at once."""
_KINDS_OF_FILES = 4
_OWN_LAYOUTS = {
    str(int(schema)): (int(schema), [list(one) for one in record_fields(dtype)])
    for schema, dtype in RECORDS.items()
}
"""By the key in a header's map ``schemas``: the number, and what a file says of such records."""


@dataclass(frozen=True)
class Header:
    """Facts of a process, as its rank file tells them.

    Attributes:
        run_id: "" when there was no launcher, None when the header is damaged.
        rank: -1 when unknown, like ``world``.
        calls: Names of API functions by number.
        schemas: Schema numbers whose records this reader can read.
    """

    host: str
    pid: int
    start_ns: int
    boot_id: str = ""
    ppid: int = -1
    run_id: str | None = None
    rank: int = -1
    world: int = -1
    mode: str = ""
    layers: str = ""
    command: str = ""
    tsc_hz: int = 0
    calls: Mapping[int, str] = field(default_factory=dict)
    schemas: frozenset[int] = frozenset(int(schema) for schema in RECORDS)


def from_name(path: Path) -> Header | None:
    """Return what a rank file's name tells, None if it is not ``HOST-PID-START.msgpack``."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["start"]) >= 1 << 63:
        return None
    return Header(match["host"], int(match["pid"]), int(match["start"]))


def from_body(raw: bytes, path: Path, decoder: Decoder) -> Header:
    """Return what the body of a header item tells.

    Raises:
        ChunkFormatError: It has a major version that this reader does not know.
        ItemError: It cannot be decoded, or is the header of something else.
    """
    fields = decoder.decode(raw, _ALIKE)
    if fields.get("format") != FORMAT_NAME:
        raise ItemError("not a SigmaTrace header")
    _check_version(fields.get("version"), path)
    layers = fields.get("layers")
    return Header(
        host=text(fields, "host"),
        pid=integer(fields, "pid"),
        start_ns=integer(fields, "start_ns", 63),
        boot_id=text(fields, "boot_id"),
        ppid=integer(fields, "ppid"),
        run_id=text(fields, "run_id"),
        rank=_signed(fields.get("rank")),
        world=_signed(fields.get("world")),
        mode=text(fields, "mode"),
        layers=",".join(str(x) for x in layers) if isinstance(layers, list) else "",
        command=_command(fields.get("command")),
        tsc_hz=integer(fields, "tsc_hz", 64),
        calls=_calls(fields.get("calls")),
        schemas=_readable_schemas(fields.get("schemas")),
    )


def _check_version(version: object, path: Path) -> None:
    if isinstance(version, list) and len(version) == 2 and version[0] == FORMAT_VERSION[0]:
        return
    shown = ".".join(str(x) for x in version[:3]) if isinstance(version, list) else str(version)
    raise ChunkFormatError(
        f"{path} has trace format version {shown[:40]}; this reader knows {FORMAT_VERSION[0]}.x",
        "read it with the SigmaTrace version that recorded it, or a newer one",
    )


def _signed(number: object) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31:
        return number
    return -1


def _command(words: object) -> str:
    return shlex.join(str(x) for x in words) if isinstance(words, list) else ""


@functools.lru_cache(_KINDS_OF_FILES)
def _calls(encoded: bytes | None) -> Mapping[int, str]:
    calls = value(encoded) if encoded else None
    if not isinstance(calls, dict):
        return {}
    numbered = {number(key): name for key, name in calls.items() if isinstance(name, str)}
    return {call: name for call, name in numbered.items() if 0 <= call < 256}


def number(key: object) -> int:
    """Return the number that a map's key spells, -1 if it spells none."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 9:
        return int(key)
    return -1


@functools.lru_cache(_KINDS_OF_FILES)
def _readable_schemas(encoded: bytes | None) -> frozenset[int]:
    """Return the schemas whose records the file describes as this reader knows them."""
    schemas = value(encoded) if encoded else None
    if not isinstance(schemas, dict):
        return Header.schemas
    return frozenset(
        schema for key, (schema, own) in _OWN_LAYOUTS.items() if _layout(schemas.get(key)) == own
    )


def _layout(described: object) -> object:
    """Return name and dtype of each field that a file describes; anything if it does not."""
    listed = described.get("fields") if isinstance(described, dict) else None
    return [one[:2] for one in listed if isinstance(one, list)] if isinstance(listed, list) else []
