"""The contract of an exporter: a map over partitions, and a finish.

``write`` runs wherever the partition is, in parallel; it leaves files of its own in the staging
folder, or hands over bytes of a file that all pieces make together, and returns a small ``Piece``.
``finish`` runs once, when all is known. The caller moves the files to their place by atomic
rename; an exporter never writes outside the staging folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Columns


@dataclass(frozen=True)
class Piece:
    """What one partition left behind.

    Attributes:
        number: The partition's number; ``finish`` gets pieces in this order.
        files: Names of the files, relative to the staging folder.
        counts: What was written, by kind ("slices", "rows"); summed into the ledger.
        streams: Buffers of bytes by the name of a file in the staging folder, which gets
            those of all pieces in their order; handed over when ``write`` returns.
        sizes: How many bytes that were, by name.
    """

    number: int
    files: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, Sequence[bytes | memoryview]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def without_streams(self) -> Piece:
        """Return the piece after its bytes were handed over."""
        sizes = {name: sum(map(len, parts)) for name, parts in self.streams.items()}
        return replace(self, streams={}, sizes=sizes)


def places(pieces: Sequence[Piece], name: str) -> list[int]:
    """Return where the bytes of each piece begin in a stream."""
    sizes = [piece.sizes.get(name, 0) for piece in pieces]
    return [0, *itertools.accumulate(sizes)][: len(pieces)]


@dataclass(frozen=True)
class Exported:
    """What an exporter produced.

    Attributes:
        files: Finished files or folders, relative to the staging folder.
        counts: Totals by kind, for the ledger.
        hint: How to open it, one line.
        balance: Equations for the ledger, as a stage gives them (``stages/base.py``). Those
            of ``SCHEMA_records`` and ``SCHEMA_left_out`` in ``counts`` need not be among them.
    """

    files: tuple[str, ...]
    counts: Mapping[str, int]
    hint: str = ""
    balance: Sequence[Mapping[str, Any]] = ()


class Exporter:
    """Writes one kind of output.

    Attributes:
        name: Name in the configuration and the ledger.
        requires: Columns read, by table. Event columns are read in ``write``, whole-run
            tables in ``finish``.
    """

    name: ClassVar[str]
    requires: ClassVar[Columns] = {}

    def prepared(self, run: Run) -> Exporter:
        """Return the exporter for a run of which the index is known; called once, before ``write``.

        Args:
            run: The index, and what stages have resolved from it.
        """
        return self

    def informed(self, book: Mapping[str, Any], said: Sequence[str]) -> Exporter:
        """Return the exporter that knows how good the run is; called once, before ``finish``.

        Args:
            book: The ledger, but for the exporters' part.
            said: The lines of the closing summary: its first word in 11 columns, then text.
        """
        return self

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Write what this partition contributes. Event-less exporters leave this alone."""
        return Piece(part.number)

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Finish the output; ``run`` now holds the results of all stages."""
        raise NotImplementedError
