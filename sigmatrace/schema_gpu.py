"""Tables of GPU-initiated operations, a part of ``schema.py``.

What each column means: docs/gpu.md, section 3, "Tables".
"""

from __future__ import annotations

GPU_INDEX_TABLES: dict[str, dict[str, str]] = {
    "gpus": {"proc": "i4", "object": "u4", "ordinal": "u4", "name": "str"},
    "uars": {
        "proc": "i4",
        "object": "u4",
        "page_id": "u4",
        "kind": "str",
        "real": "u8",
        "shadow": "u8",
        "passed_through": "str",
        "exposed": "str",
        "born_tsc": "u8",
        "gone_tsc": "u8",
    },
    "umems": {
        "proc": "i4",
        "object": "u4",
        "umem_id": "u4",
        "address": "u8",
        "size_bytes": "u8",
        "access": "u4",
        "dmabuf": "bool",
        "gpu": "u4",
        "born_tsc": "u8",
        "gone_tsc": "u8",
    },
    "gpu_queues": {
        "proc": "i4",
        "object": "u4",
        "qpn": "u4",
        "gpu": "u4",
        "uar": "u4",
        "umem": "u4",
        "has_totals": "bool",
        "doorbells": "u8",
        "slots": "u8",
        "invalid_slots": "u8",
        "uncopied_slots": "u8",
        "completions": "bool",
    },
    "kernels_not_recorded": {"proc": "i4", "object": "u4", "reason": "str"},
}
"""Whole-run tables that the index provides."""

GPU_STAGE_TABLES: dict[str, dict[str, str]] = {
    "doorbells_by_qp": {
        "proc": "i4",
        "object": "u4",
        "qpn": "u4",
        "peer_proc": "i4",
        "gpu": "u4",
        "doorbells": "i8",
        "again": "i8",
        "synthesized": "i8",
        "late": "i8",
        "slots": "i8",
        "not_read": "i8",
        "read": "i8",
        "invalid": "i8",
        "wqes": "i8",
        "wqe_bytes": "i8",
        "operations": "i8",
        "size_bytes": "i8",
        "slots_max": "i8",
        "delay_total_ns": "i8",
        "delay_min_ns": "i8",
        "delay_max_ns": "i8",
    },
    "doorbell_batches": {
        "proc": "i4",
        "object": "u4",
        "qpn": "u4",
        "peer_proc": "i4",
        "gpu": "u4",
        "log2": "i8",
        "doorbells": "i8",
    },
}
"""Whole-run tables that the stage doorbell adds."""
