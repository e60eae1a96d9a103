"""From what capture tells of GPUs, registers and memory to rows."""

from __future__ import annotations

import numpy as np
from capture_cases import object_tables

from sigmatrace.capture.objects import KNOWN_TYPES
from sigmatrace.trace_format import RECORDS, Schema

NONE = np.zeros(0, RECORDS[Schema.CHANNEL])


def rows(objects, table):
    """Rows of a table, in the order of objects."""
    assert {fields["type"] for fields in objects.values()} <= KNOWN_TYPES
    found = object_tables(objects, NONE, "h")[table].to_pylist()
    return sorted(found, key=lambda row: row["object"])


def test_queue_pairs_lie_in_the_memory_of_a_gpu_and_tell_totals_at_their_end() -> None:
    totals = {"doorbells": 3, "slots": 7, "invalid_slots": 1, "uncopied_slots": 2}
    objects = {
        9: {"type": "mlx5_qp", "qpn": 0x55, "uar": 4, **totals},
        8: {"type": "mlx5_qp", "umem": 7, "completions": 1},
        7: {"type": "mlx5_umem", "gpu": 6},
        6: {"type": "gpu", "ordinal": 1, "name": "H200"},
    }
    assert rows(objects, "gpus") == [{"object": 6, "ordinal": 1, "name": "H200"}]
    first, second = rows(objects, "gpu_queues")
    nothing = dict.fromkeys(totals, 0)
    where = {"object": 8, "qpn": 0, "gpu": 6, "uar": 0, "umem": 7}
    assert first == {**where, "has_totals": False, **nothing, "completions": True}
    where = {"object": 9, "qpn": 0x55, "gpu": 0, "uar": 4, "umem": 0}
    assert second == {**where, "has_totals": True, **totals, "completions": False}


def test_registers_have_a_shadow_or_a_reason() -> None:
    given = {"page_id": 5, "kind": "bf", "real": 0x7000, "shadow": 0x9000}
    objects = {
        2: {"type": "mlx5_uar", **given, "t_tsc": 10, "closed_tsc": 30},
        3: {"type": "mlx5_uar", "real": 2**64 - 1, "passed_through": "recording is off"}
        | {"exposed": "dmabuf"},
    }
    times = {"born_tsc": 0, "gone_tsc": 0}
    assert rows(objects, "uars") == [
        {"object": 2, **given, "passed_through": "", "exposed": "", "born_tsc": 10, "gone_tsc": 30},
        {
            **{"object": 3, "page_id": 0, "kind": "", "real": 2**64 - 1, "shadow": 0},
            **{"passed_through": "recording is off", "exposed": "dmabuf", **times},
        },
    ]


def test_memory_is_that_of_a_gpu_or_of_the_host() -> None:
    given = {"umem_id": 3, "address": 2**63, "size_bytes": 2**40, "access": 7}
    objects = {
        2: {"type": "mlx5_umem", **given, "dmabuf_fd": 0, "gpu": 9, "t_tsc": 1},
        3: {"type": "mlx5_umem", **given, "gpu": "no number"},
    }
    times = {"born_tsc": 1, "gone_tsc": 0}
    assert rows(objects, "umems") == [
        {"object": 2, **given, "dmabuf": True, "gpu": 9, **times},
        {"object": 3, **given, "dmabuf": False, "gpu": 0, **times, "born_tsc": 0},
    ]


def test_a_process_says_why_it_has_no_kernels() -> None:
    objects = {5: {"type": "gpu_kernels", "not_recorded": "no CUPTI"}}
    assert rows(objects, "kernels_not_recorded") == [{"object": 5, "reason": "no CUPTI"}]
