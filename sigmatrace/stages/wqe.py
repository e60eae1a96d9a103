"""Stage wqe: what the raw slots of send queues hold (layer mlx5dv, mode ``full``).

Capture decodes the same slots when it records operations; here they are decoded once more, by
other code, so that stage doorbell can compare. Source: docs/gpu.md; docs/format.md 2.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Partition, Run
from sigmatrace.queue_pairs import DESCRIBED, numbers
from sigmatrace.schema import Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.trace_format import Layer

_WIDE = (
    *("raddr", "size_bytes", "laddr", "atomic_operand", "atomic_compare"),
    *("atomic_operand_mask", "atomic_compare_mask", "dc_key", "rmac"),
    *("dgid_prefix", "dgid_interface"),
)
_MIDDLE = (
    *("rkey", "imm", "lkey", "inline_bytes", "remote_qpn", "dlid", "flow_label", "stream"),
    *("wait_index", "wait_cqn"),
)
_NARROW = (
    *("opcode", "opmod", "op", "sges", "slots", "ce", "fence", "solicited"),
    *("has_av", "sl", "tclass", "hop_limit"),
)
DECODED = {
    **dict.fromkeys(_WIDE, "u8"),
    **dict.fromkeys(_MIDDLE, "u4"),
    **dict.fromkeys(_NARROW, "u1"),
}
"""Columns at the first slot of a work queue element, 0 elsewhere and where it has no such part.

What each means: docs/gpu.md section 3.
"""
WORDS = tuple(f"w{k}" for k in range(8))


@dataclass(frozen=True)
class Senders:
    """The queue pairs of layer mlx5dv.

    Attributes:
        key: ``(q,)`` i8, process and object (``lookup.object_keys``), ascending.
        qpn: ``(q,)`` u4.
        has_av: ``(q,)`` u1, whether each work request names its destination.
    """

    key: NDArray[np.int64]
    qpn: NDArray[np.uint32]
    has_av: NDArray[np.uint8]


class Wqe(Stage):
    """Adds to slots what they hold, and ``decoded``, their ``WqeKind`` as found here."""

    name: ClassVar[str] = "wqe"
    summary: ClassVar[SummaryKind] = "index"
    requires: ClassVar[Columns] = {
        "endpoints": {**DESCRIBED["endpoints"], "av": "u4"},
        "gpu_queues": DESCRIBED["gpu_queues"],
        "wqes": {
            "proc": "i4",
            "t_tsc": "u8",
            "index": "u8",
            "qp": "u4",
            **dict.fromkeys(WORDS, "u8"),
        },
    }
    produces: ClassVar[Columns] = {
        # decoded: trace_format.WqeKind; 0 when the queue pair is not known.
        "wqes": {**DECODED, "decoded": "u1"},
    }

    def survey(self, run: Run) -> Senders:
        """Collect numbers and kinds of the queue pairs."""
        mine = np.flatnonzero(run.column("endpoints", "layer") == Layer.MLX5DV)
        key = object_keys(*(run.column("endpoints", x)[mine] for x in ("proc", "object")))
        mine = mine[np.argsort(key)]
        own = tuple(run.column("endpoints", x)[mine] for x in ("proc", "object"))
        has_av = (run.column("endpoints", "av")[mine] != 0).astype(np.uint8)
        return Senders(object_keys(*own), numbers(run, *own), has_av)

    def apply(self, part: Partition, resolved: Senders) -> Partition:
        """Decode the partition's slots."""
        from sigmatrace.stages.kernels.wqe import walk_kernel

        proc, t_tsc, index, qp = (
            part.column("wqes", name) for name in ("proc", "t_tsc", "index", "qp")
        )
        columns: dict[str, NDArray[Any]] = {
            name: np.zeros(proc.size, dtype) for name, dtype in DECODED.items()
        }
        decoded = np.zeros(proc.size, np.uint8)
        words = tuple(part.column("wqes", name) for name in WORDS)
        pair = find_objects(resolved.key, proc, qp)
        pair[np.append(resolved.qpn, 0)[pair] == 0] = -1
        queue = (pair, resolved.qpn, resolved.has_av)
        out = tuple(tuple(columns[name] for name in names) for names in (_WIDE, _MIDDLE, _NARROW))
        if proc.size:  # else nothing is compiled for nothing
            walk_kernel(proc, t_tsc, index, *queue, words, decoded, out)
        return part.with_columns("wqes", {**columns, "decoded": decoded})
