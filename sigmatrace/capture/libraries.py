"""The communication libraries of this machine: where they are, and what they say of themselves."""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sigmatrace.capture.layers import LayerInfo

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_DEFAULT_DIR = re.compile(rb"Search for providers in specific path[^\0]*\(default: ([^)\0]+)\)")


@dataclass(frozen=True)
class Library:
    """A shared library that was found.

    Attributes:
        path: The file.
        version: What it says, "" when that is nothing; None when it cannot be loaded.
    """

    path: Path
    version: str | None


def found(layer: LayerInfo, environment: Mapping[str, str]) -> list[Library]:
    """Return the copies of a layer's library that the loader may find, its first choice first.

    Args:
        layer: The layer.
        environment: Whose LD_LIBRARY_PATH counts.
    """
    paths = _paths(layer.library, environment)
    return [Library(path, _version(layer.version, path, environment)) for path in paths]


def provider_dirs(environment: Mapping[str, str], command: str = "") -> list[Path]:
    """Return the folders that this machine's libfabrics search for providers by default.

    The folder is compiled into the library and stands in the help text of FI_PROVIDER_PATH;
    it is read from there without loading anything. Folders that do not exist are left out.
    Folders of LD_LIBRARY_PATH with providers in them count too: libfabric asks the loader.

    Args:
        environment: The environment of the command to be traced.
        command: The program, whose own ``../lib`` may bring a libfabric.
    """
    own = list(_beside(command)) if command else []
    folders: dict[Path, None] = {}
    for path in (*own, *_paths("libfabric", environment)):
        for folder in _compiled_in(path):
            if folder.is_dir():
                folders[folder] = None
    for folder in _library_path(environment):
        if any(folder.glob("lib*-fi.so")):
            folders[folder] = None
    return list(folders)


def _beside(command: str) -> Iterator[Path]:
    prefix = Path(command).resolve().parent.parent
    for folder in ("lib", "lib64"):
        path = prefix / folder / "libfabric.so.1"
        if path.exists():
            yield path


def _paths(name: str, environment: Mapping[str, str]) -> list[Path]:
    paths: dict[Path, None] = {}
    for folder in _library_path(environment):
        for path in sorted(folder.glob(f"{name}.so.*")):
            paths[path.resolve()] = None
    for line in _cache().splitlines():
        entry, arrow, path_text = line.strip().partition(" => ")
        if arrow and entry.startswith(f"{name}.so.") and "x86-64" in entry:
            paths[Path(path_text).resolve()] = None
    return list(paths)


def _library_path(environment: Mapping[str, str]) -> list[Path]:
    text = environment.get("LD_LIBRARY_PATH", "").replace(";", ":")
    return [path for path in map(Path, filter(None, text.split(":"))) if path.is_dir()]


def _cache() -> str:
    for program in _LDCONFIG:
        try:
            return subprocess.run(
                [program, "-p"], capture_output=True, text=True, check=True, timeout=10
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
    return ""


def _compiled_in(library: Path) -> list[Path]:
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            match = _DEFAULT_DIR.search(data)
            text = match.group(1).decode(errors="replace") if match else ""
    except (OSError, ValueError):
        return []
    return [Path(part) for part in text.split(":") if part.startswith("/")]


def _version(asking: str, path: Path, environment: Mapping[str, str]) -> str | None:
    # In a process of its own: two copies of one library in one process disturb each other.
    code = f"import sys, ctypes as c; l=c.CDLL(sys.argv[1]); {asking}"
    try:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
            env=dict(environment),
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
