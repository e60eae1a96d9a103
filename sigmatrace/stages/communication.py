"""Stage communication: who sent how much to whom, by queue pair, GPU, NIC, rank and node.

The rows of ``sizes`` of operations that initiate traffic, summed up by their ends
(``ends.py``). Nested operations are left out: another one of the same layer carries their bytes.
What is not known of an end is "", in rows of their own. A level of which nothing is known at a
layer has no rows there, and the ledger says how much it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.ends import KNOWN_COLUMNS, Known, Level, levels_of
from sigmatrace.stages.sums import LIMB, LOW, Sums, column_sums, sums_of
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.trace_format import INITIATORS

_BITS = np.uint64(28)
_PLACE = np.uint64((1 << 28) - 1)
_MOST = np.uint64(2**64 - 1)


class Communication(TableStage):
    """Makes ``communication``."""

    name: ClassVar[str] = "communication"
    requires: ClassVar[Columns] = {"sizes": STAGE_TABLES["sizes"], **KNOWN_COLUMNS}
    produces: ClassVar[Columns] = {"communication": STAGE_TABLES["communication"]}

    def survey(self, run: Run) -> Told:
        """Sum up the traffic at each level."""
        sizes = run.tables["sizes"]
        initiated = np.isin(column(sizes, "op"), INITIATORS) & (column(sizes, "nested") == 0)
        rows = sizes.filter(pa.array(initiated))
        found = [_summed(name, one, rows) for name, one in _levels(rows, run).items()]
        beyond = int((column(sizes, "size_bytes") == _MOST).sum())
        ledger: dict[str, Any] = {
            **_amounts("", rows),
            **_amounts("not_counted_", sizes.filter(pa.array(~initiated))),
            "byte_sums_beyond_u64": beyond + sum(over for _, over, _ in found),
            "levels": {name: told for _, _, told in found for name, told in told.items()},
        }
        ledger["balance"] = _balance(ledger)
        return Told(pa.concat_tables([table for table, _, _ in found]), ledger)


def _levels(rows: pa.Table, run: Run) -> dict[str, Level]:
    return levels_of(rows, run, Known(run))


def _amounts(prefix: str, rows: pa.Table) -> dict[str, int]:
    """Return operations and bytes of rows of ``sizes``."""
    what = {"operations": "count", "size_bytes": "size_bytes"}
    return {f"{prefix}{key}": sum(rows.column(name).to_pylist()) for key, name in what.items()}


def _summed(name: str, level: Level, rows: pa.Table) -> tuple[pa.Table, int, dict[str, Any]]:
    """Return the rows of a level, how many sums are beyond 64 bits, and what the ledger tells."""
    layers, layer = np.unique(column(rows, "layer"), return_inverse=True)
    shown = np.bincount(layer, level.is_known, layers.size)[layer] > 0
    at = np.flatnonzero(shown)
    key = layer[at].astype(np.uint64) << np.uint64(2) * _BITS
    key |= level.src[at].astype(np.uint64) << _BITS | level.dst[at].astype(np.uint64)
    total = sums_of(key, _limbs(rows)[at])
    src, dst = (total.key >> _BITS & _PLACE).astype(np.int64), (total.key & _PLACE).astype(np.int64)
    size_bytes, over = column_sums(total)
    names = pa.array(level.names, pa.string())
    table = {
        "level": pa.array([name], pa.string()).take(pa.array(np.zeros(src.size, np.int8))),
        "layer": layers[(total.key >> np.uint64(2) * _BITS).astype(np.int64)],
        "src": names.take(pa.array(src)),
        "dst": names.take(pa.array(dst)),
        "operations": total.sums[:, 0],
        "size_bytes": size_bytes,
        "size_unknown": total.sums[:, 3],
        "mean_bytes": _means(total),
    }
    unknown = len(level.names) - 1
    lacking = (src == unknown) | (dst == unknown)
    told = {
        "operations": sum(total.sums[:, 0].tolist()),
        "size_bytes": sum(size_bytes.tolist()),
        "unknown_end_operations": sum(total.sums[lacking, 0].tolist()),
        **_amounts("left_out_", rows.filter(pa.array(~shown))),
    }
    return pa.table(table), over, {name: told}


def _limbs(rows: pa.Table) -> NDArray[np.uint64]:
    """Return count, bytes in two limbs, and operations of unknown size, as ``Sums`` has them."""
    count, size_bytes = (column(rows, name) for name in ("count", "size_bytes"))
    unknown = (column(rows, "least_bytes") == 0) & (column(rows, "most_bytes") == _MOST)
    return np.stack([count, size_bytes & LOW, size_bytes >> LIMB, count * unknown], axis=1)


def _means(total: Sums) -> pa.Array:
    """Return mean bytes of the operations of known size; null where there are none."""
    count = (total.sums[:, 0] - total.sums[:, 3]).astype(np.float64)
    size = total.sums[:, 2].astype(np.float64) * 2.0**32 + total.sums[:, 1]
    return pa.array(size / np.maximum(count, 1), mask=count == 0)


def _balance(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return that each level has all of the traffic; bytes beyond 64 bits are not judged."""
    equations: list[dict[str, Any]] = []
    traffic = "stages.traffic"
    whole = [f"{traffic}.operations", f"{traffic}.aggregated_operations"]
    for name, level in ledger["levels"].items():
        parts = [level["operations"], level["left_out_operations"]]
        left = [*parts, ledger["not_counted_operations"]]
        equations.append({"name": f"operations at level {name}", "left": left, "right": whole})
        if not ledger["byte_sums_beyond_u64"]:
            parts = [level["size_bytes"], level["left_out_size_bytes"]]
            left = [*parts, ledger["not_counted_size_bytes"]]
            right = f"{traffic}.size_bytes"
            equations.append({"name": f"bytes at level {name}", "left": left, "right": right})
    return equations
