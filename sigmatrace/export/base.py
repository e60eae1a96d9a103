"""The contract of an exporter: a map over partitions, and a finish.

``write`` runs wherever the partition is, in parallel; it leaves pieces in the staging folder
and returns a small ``Piece``. ``finish`` runs once, when all is known. The caller moves the
files to their place by atomic rename; an exporter never writes outside the staging folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """

    number: int
    files: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


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

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Write what this partition contributes. Event-less exporters leave this alone."""
        return Piece(part.number)

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Finish the output; ``run`` now holds the results of all stages."""
        raise NotImplementedError
