"""Rows of the tables of GPUs, and of what libmlx5 made for them, from a process's objects."""

from __future__ import annotations

from typing import Any

from sigmatrace.capture.names.fields import Fields, Objects, integer, lifetime, of_type, text

_TOTALS = ("doorbells", "slots", "invalid_slots", "uncopied_slots")


def gpu_rows(objects: Objects) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of ``schema_gpu.GPU_INDEX_TABLES`` by table, without the column ``proc``.

    Args:
        objects: Merged fields by object id.
    """
    return {
        "gpus": [_gpu(*one) for one in of_type(objects, "gpu").items()],
        "uars": [_uar(*one) for one in of_type(objects, "mlx5_uar").items()],
        "umems": [_umem(*one) for one in of_type(objects, "mlx5_umem").items()],
        "gpu_queues": [_queue(*one, objects) for one in of_type(objects, "mlx5_qp").items()],
        "kernels_not_recorded": [
            (key, text(fields, "not_recorded"))
            for key, fields in of_type(objects, "gpu_kernels").items()
        ],
    }


def _gpu(key: int, fields: Fields) -> tuple[Any, ...]:
    return key, integer(fields, "ordinal"), text(fields, "name")


def _uar(key: int, fields: Fields) -> tuple[Any, ...]:
    what = integer(fields, "page_id"), text(fields, "kind")
    where = integer(fields, "real", 64), integer(fields, "shadow", 64)
    blind = text(fields, "passed_through"), text(fields, "exposed")
    return (key, *what, *where, *blind, *lifetime(fields))


def _umem(key: int, fields: Fields) -> tuple[Any, ...]:
    where = (integer(fields, name, 64) for name in ("address", "size_bytes"))
    what = integer(fields, "access"), "dmabuf_fd" in fields, integer(fields, "gpu")
    return (key, integer(fields, "umem_id"), *where, *what, *lifetime(fields))


def _queue(key: int, fields: Fields, objects: Objects) -> tuple[Any, ...]:
    uar, umem = integer(fields, "uar"), integer(fields, "umem")
    gpu = integer(objects.get(umem, {}), "gpu")
    totals = (integer(fields, name, 64) for name in _TOTALS)
    sees = bool(integer(fields, "completions"))
    return (key, integer(fields, "qpn"), gpu, uar, umem, "slots" in fields, *totals, sees)
