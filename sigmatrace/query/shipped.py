"""The queries that come with the package: SQL files, one for DuckDB and one for PerfettoSQL each.

The comment at the head of DuckDB's says what a query tells: its first line in short, then how to
read the answer, then what rows are made of, and a line for each parameter, with its default (of
several values the first):

    -- looks at: messages of which the send and the receive were seen
    -- level=rank|node  what an end is
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sigmatrace.errors import ConfigError

FOLDER = Path(__file__).parent / "sql"
PACKAGE = "sigmatrace"
MODULE = f"{PACKAGE}.rdma"
"""The PerfettoSQL module that the queries for traces are made of."""
_LOOKS_AT = "looks at: "
_PARAMETER = re.compile(r"(\w+)=(\S*)  (.+)")


@dataclass(frozen=True)
class Shipped:
    """A query.

    Attributes:
        name: Its name.
        text: What it tells, in a line.
        looks_at: What there must be, for an answer to have rows.
        parameters: Name of each to its values (the first is the default; one: any) and meaning.
    """

    name: str
    text: str
    looks_at: str
    parameters: Mapping[str, tuple[list[str], str]]

    def sql(self, *, perfetto: bool) -> str:
        """Return its SQL, with parameters as ``$name``."""
        folder = FOLDER / "perfetto" if perfetto else FOLDER
        return (folder / f"{self.name}.sql").read_text()

    def filled(self, given: Mapping[str, str], *, perfetto: bool) -> str:
        """Return its SQL with values for its parameters.

        Args:
            given: Values by name; the others have their default.
            perfetto: For a trace.

        Raises:
            ConfigError: There is no such parameter, or it has no such value.
        """
        for key in given.keys() - self.parameters.keys():
            known = ", ".join(self.parameters) or "none"
            raise ConfigError(f"{key}: no parameter of {self.name}", f"there are: {known}")
        values = {key: given.get(key, of[0]) for key, (of, _) in self.parameters.items()}
        for key, (of, _) in self.parameters.items():
            if len(of) > 1 and values[key] not in of:
                raise ConfigError(f"{key}={values[key]}: no such value", f"use {' or '.join(of)}")
        literals = {key: "'" + value.replace("'", "''") + "'" for key, value in values.items()}
        return re.sub(r"\$(\w+)", lambda found: literals[found[1]], self.sql(perfetto=perfetto))


def all_queries() -> dict[str, Shipped]:
    """Return all of them by name."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.sql"))}


def named(name: str) -> Shipped:
    """Return one.

    Raises:
        ConfigError: There is none of this name.
    """
    known = all_queries()
    if name not in known:
        raise ConfigError(f"{name}: no such query", f"there are: {', '.join(known)}")
    return known[name]


def modules() -> dict[str, str]:
    """Return the text of the PerfettoSQL modules by their name."""
    return {MODULE: (FOLDER / "perfetto" / "rdma.sql").read_text()}


def _read(path: Path) -> Shipped:
    head = []
    for line in path.read_text().splitlines():
        if not line.startswith("-- "):
            break
        head.append(line.removeprefix("-- "))
    found = [match for line in head if (match := _PARAMETER.fullmatch(line))]
    parameters = {match[1]: (match[2].split("|"), match[3]) for match in found}
    looks_at = next(line for line in head if line.startswith(_LOOKS_AT)).removeprefix(_LOOKS_AT)
    return Shipped(path.stem, head[0], looks_at, parameters)
