"""The programs that a command line names, also within shell code and scripts."""

from __future__ import annotations

import itertools
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sigmatrace.capture.elf import Program, inspect, with_all_needed

_BETWEEN = re.compile(r"[\s;&|()<>{}`\"'$=]+")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_WORDS_MAX = 2000
_PROGRAMS_MAX = 20
_SCRIPT_MAX_BYTES = 1 << 16


def words(command: Sequence[str], search: str) -> list[str]:
    """Return the words of a command line, then those of the shell code and scripts in it.

    ``sh -c 'mpirun -n 4 ./app'`` mentions mpirun and ./app, and so does a script with this
    line. Shell code is not parsed: the words tell what may have run, nothing more.

    Args:
        command: The command line.
        search: Value of PATH.
    """
    found: list[str] = []
    seen: set[str] = set()
    waiting = deque(command)
    while waiting and len(found) < _WORDS_MAX:
        word = waiting.popleft()
        found.append(word)
        if word not in seen:
            seen.add(word)
            inner = word if _BETWEEN.search(word) else _script(word, search)
            waiting.extend(part for part in _BETWEEN.split(inner) if part)
    return found


def programs(said: Iterable[str], environment: Mapping[str, str]) -> list[Program]:
    """Return the first ELF programs among words, each once, in their order.

    ``mpirun -n 4 ./app`` names two: the words cannot be told apart without knowing every
    launcher's options, so each word that is an executable file counts, but for libraries.

    Args:
        said: The words.
        environment: Whose PATH and LD_LIBRARY_PATH count.
    """
    search = environment.get("PATH", os.defpath)
    named = (word for word in dict.fromkeys(said) if not _LIBRARY.search(word))
    paths = [_executable(word, search) for word in named]
    found = (inspect(path) for path in dict.fromkeys(paths) if path)
    first = itertools.islice((program for program in found if program), _PROGRAMS_MAX)
    return [with_all_needed(program, environment) for program in first]


def _executable(word: str, search: str) -> Path | None:
    folders = [""] if "/" in word else search.split(":")
    for folder in folders:
        path = Path(folder, word)
        try:
            if path.is_file() and os.access(path, os.X_OK):
                return path
        except OSError:  # too long for a name
            return None
    return None


def _script(word: str, search: str) -> str:
    """Return the text of a script without its comments; "" when the word names none."""
    path = _executable(word, search) or Path(word)
    try:
        if not path.is_file() or not (word.endswith(".sh") or os.access(path, os.X_OK)):
            return ""
        with path.open("rb") as file:
            head = file.read(_SCRIPT_MAX_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in head else _COMMENT.sub("", head.decode(errors="replace"))
