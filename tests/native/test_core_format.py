"""The constants of the trace format: the writer's header against the reader's schema."""

from __future__ import annotations

import os
import re
import subprocess
from enum import IntEnum
from pathlib import Path

from native_run import NATIVE, compile_c

from sigmatrace import trace_format

HEADER = NATIVE / "st_format.h"
ENUMS: dict[str, tuple[str, type[IntEnum]]] = {
    "st_item": ("ST_ITEM_", trace_format.Item),
    "st_schema": ("ST_SCHEMA_", trace_format.Schema),
    "st_op_code": ("ST_OP_", trace_format.Op),
    "st_op_flag": ("ST_", trace_format.OpFlag),
    "st_kind": ("ST_KIND_", trace_format.Kind),
    "st_dir": ("ST_", trace_format.Dir),
    "st_layer": ("ST_LAYER_", trace_format.Layer),
    "st_channel_flag": ("ST_", trace_format.ChannelFlag),
    "st_mark_kind": ("ST_MARK_", trace_format.MarkKind),
    "st_doorbell_flag": ("ST_DOORBELL_", trace_format.DoorbellFlag),
    "st_wqe_kind": ("ST_WQE_", trace_format.WqeKind),
    "st_queue": ("ST_QUEUE_", trace_format.Queue),
}
"""By the enum's name in the header: what its names begin with, and the reader's enum."""


def values(names: list[str], folder: Path) -> dict[str, int]:
    """Let a C program say what the names stand for."""
    lines = "".join(f'printf("{name} %llu\\n", (unsigned long long)({name}));' for name in names)
    source = folder / "values.c"
    source.write_text(
        f'#include <stdio.h>\n#include "st_format.h"\nint main(void) {{ {lines} return 0; }}\n'
    )
    program = compile_c(source, folder / "values")
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in told.splitlines())}


def test_enums_agree_with_the_schema(tmp_path: Path) -> None:
    expanded = subprocess.run(
        [os.environ.get("CC", "cc"), "-E", "-P", str(HEADER)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {
        name: re.findall(r"\bST_\w+", body)
        for name, body in re.findall(r"\benum (st_\w+)\s*\{([^}]*)\}", expanded)
    }
    assert found.keys() == ENUMS.keys(), "an enum that this test does not know"
    known = values([name for names in found.values() for name in names], tmp_path)
    for enum, names in found.items():
        prefix, mirror = ENUMS[enum]
        said = {name.removeprefix(prefix): known[name] for name in names}
        last = said.pop("LAST", None)
        assert said == {one.name: one.value for one in mirror}, enum
        assert last in (None, max(said.values()) + 1), enum


def test_version_and_unknown_peer_agree_with_the_schema(tmp_path: Path) -> None:
    names = ["ST_FORMAT_MAJOR", "ST_FORMAT_MINOR", "ST_UNKNOWN_PEER", "ST_SIZE_BITS_UNKNOWN"]
    known = values(names, tmp_path)
    assert (known["ST_FORMAT_MAJOR"], known["ST_FORMAT_MINOR"]) == trace_format.FORMAT_VERSION
    assert known["ST_UNKNOWN_PEER"] == trace_format.UNKNOWN_PEER
    assert known["ST_SIZE_BITS_UNKNOWN"] == trace_format.SIZE_BITS_UNKNOWN
