"""Outputs of the pipeline compared byte by byte."""

from __future__ import annotations

import json
from pathlib import Path


def contents(out: Path) -> dict[str, bytes]:
    """Every file of an output by its name; what says where and how it was made is left out.

    That is the name of the output folder, and the cluster in ``run.json``.
    """
    found = {
        str(path.relative_to(out)): path.read_bytes().replace(bytes(out), b"OUT")
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    record = json.loads(found["run.json"])
    for key in ("cluster", "out", "stage"):
        record["options"].pop(key)
    return {**found, "run.json": json.dumps(record).encode()}


def assert_same(left: Path, right: Path) -> None:
    """Every file is there on both sides, with the same bytes."""
    one, other = contents(left), contents(right)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
