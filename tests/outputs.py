"""Outputs of the pipeline compared byte by byte."""

from __future__ import annotations

import json
from pathlib import Path


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its name in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def contents(out: Path) -> dict[str, bytes]:
    """Every file of an output by its name; what says where and how it was made is left out.

    That is the name of the output folder, and the cluster in ``run.json``.
    """
    found = {name: data.replace(bytes(out), b"OUT") for name, data in files(out).items()}
    record = json.loads(found["run.json"])
    for key in ("cluster", "out", "stage"):
        record["options"].pop(key)
    return {**found, "run.json": json.dumps(record).encode()}


def assert_same(left: Path, right: Path) -> None:
    """Every file is there on both sides, with the same bytes."""
    one, other = contents(left), contents(right)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
