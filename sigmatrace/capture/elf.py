"""What the dynamic loader will do with a program: enough of ELF to say why nothing was seen."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5
_HEADER = struct.Struct("<16xHHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_LOADER_WAIT_S = 10


@dataclass(frozen=True)
class Program:
    """What matters of an ELF program.

    Attributes:
        path: The file.
        static: It names no dynamic loader, so nothing can be preloaded.
        privileged: setuid, setgid or with file capabilities for another user: the loader then
            ignores LD_PRELOAD.
        needed: Names of the libraries it is linked with; of ``with_all_needed`` also of those
            that these are linked with.
    """

    path: Path
    static: bool
    privileged: bool
    needed: tuple[str, ...]


def inspect(path: Path) -> Program | None:
    """Return what a program is, or None when it is no readable 64-bit little-endian ELF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                return None
            segments = _segments(data)
            interpreted = any(segment[0] == _PT_INTERP for segment in segments)
            return Program(path, not interpreted, _privileged(path), _needed(data, segments))
    except (OSError, ValueError, struct.error):
        return None


def with_all_needed(program: Program, environment: Mapping[str, str]) -> Program:
    """Return a program with all libraries that its loader would map at the start.

    The loader is only asked: nothing of the program runs. Where it cannot tell, the program's
    own list stays.

    Args:
        program: Of ``inspect``.
        environment: Whose LD_LIBRARY_PATH counts.
    """
    if program.static or program.privileged:
        return program
    try:
        said = subprocess.run(
            [_LOADER, "--list", str(program.path)],
            env={key: value for key, value in environment.items() if key != "LD_PRELOAD"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_LOADER_WAIT_S,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return program
    words = (line.split() for line in said.splitlines())
    names = (fields[0].rpartition("/")[2] for fields in words if fields)
    return replace(program, needed=tuple(dict.fromkeys((*program.needed, *names))))


def _segments(data: mmap.mmap) -> list[tuple[int, ...]]:
    """Return (type, flags, offset, vaddr, paddr, filesz, memsz, align) of each segment."""
    fields = _HEADER.unpack_from(data)
    offset, size, count = fields[4], fields[8], fields[9]
    return [_SEGMENT.unpack_from(data, offset + k * size) for k in range(count)]


def _needed(data: mmap.mmap, segments: list[tuple[int, ...]]) -> tuple[str, ...]:
    names, strings = [], 0
    for segment in segments:
        if segment[0] != _PT_DYNAMIC:
            continue
        for at in range(segment[2], segment[2] + segment[5], _ENTRY.size):
            tag, value = _ENTRY.unpack_from(data, at)
            if tag == _DT_NEEDED:
                names.append(value)
            elif tag == _DT_STRTAB:
                strings = _offset(segments, value)
    return tuple(_text(data, strings + name) for name in names)


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return address - start + offset
    raise ValueError("address outside of the file")


def _text(data: mmap.mmap, offset: int) -> str:
    end = data.find(b"\0", offset)
    return data[offset:end].decode(errors="replace")


def _privileged(path: Path) -> bool:
    status = path.stat()
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
