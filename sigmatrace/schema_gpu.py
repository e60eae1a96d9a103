"""Tables of GPU-initiated operations, a part of ``schema.py``; docs/gpu.md explains them."""

from __future__ import annotations

GPU_INDEX_TABLES: dict[str, dict[str, str]] = {
    "gpus": {"proc": "i4", "object": "u4", "ordinal": "u4", "name": "str"},
    # Registers of NICs that the program got by libmlx5 (layer mlx5dv). `kind`: "bf", "nc",
    # "nc_dedicated", or "qp" (of a queue pair that libmlx5 made). `shadow`: address of the page
    # that is watched in its place; 0 where it is not watched: `passed_through` then says why.
    # `exposed`: another way to the real one, whose doorbells are not seen.
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
    # Memory that the program registered by libmlx5 for a NIC: rings, doorbell records, completion
    # queues. `gpu`: object of the GPU whose memory it is (0: the host's); `dmabuf`: registered by a
    # file descriptor.
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
    # Queue pairs of layer mlx5dv: `qpn`, their number also where `endpoints` has no place that it
    # belongs to; `gpu`, object in whose memory the queue lies (0: the host's), its
    # `uar` and `umem`, and what it said at its end; `has_totals`: whether it did. Slots of 64
    # bytes: announced by doorbells, of these overwritten before the copy, and not copied.
    # `completions`: whether they can be seen.
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
    # Processes whose kernels could not be recorded, and why.
    "kernels_not_recorded": {"proc": "i4", "object": "u4", "reason": "str"},
}
"""Whole-run tables that the index provides."""

GPU_STAGE_TABLES: dict[str, dict[str, str]] = {
    # doorbell: one row per queue pair of layer mlx5dv; `qpn`, `peer_proc` and `gpu` as in `queues`.
    # `doorbells`: seen by the sweeper, without those that rang again for the same index (`again`);
    # stores of a kernel between two looks of the sweeper are one. `slots`: announced by them, of
    # these `not_read` in doorbells whose WQEs were not read; `read`: in the trace, `invalid` ones
    # among them. `wqes`, `wqe_bytes`: decoded from these slots. `operations`, `size_bytes`: of
    # layer mlx5dv. Delays: from seen to forwarded; the least is the limit of i8 without doorbells.
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
    # doorbell: how many slots a doorbell that was seen announces, 2^log2 to 2^(log2 + 1) - 1.
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
