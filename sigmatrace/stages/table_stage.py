"""Stages whose result is one table, and what the ledger says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from sigmatrace.stages.base import Stage, SummaryKind


@dataclass(frozen=True)
class Told:
    """The table, and its part of the ledger."""

    table: pa.Table
    ledger: Mapping[str, Any]


class TableStage(Stage):
    """A stage that produces one whole-run table; what is resolved is a ``Told``."""

    summary: ClassVar[SummaryKind] = "tables"

    def results(self, resolved: Told) -> Mapping[str, pa.Table]:
        """Return the table by its name."""
        ((name, _),) = self.produces.items()
        return {name: resolved.table}

    def account(self, resolved: Told) -> Mapping[str, object]:
        """Return what the ledger says of it."""
        return resolved.ledger
