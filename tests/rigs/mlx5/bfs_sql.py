"""The pipeline's output of a search, by the statements of the documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from sigmatrace.trace_format import DoorbellFlag
from tests.rigs.mlx5.bfs_levels import Levels, Posted

PAGE = Path(__file__).parents[3] / "docs/gpu.md"


def documented_sql() -> list[str]:
    """The statements of the page's section on levels, in order."""
    section = PAGE.read_text().partition("\n## 5. ")[2]
    code = "\n".join(re.findall(r"^ {4}(?!--)(.*)$", section, re.MULTILINE))
    return [statement for statement in code.split(";") if statement.strip()]


def opened(out: Path) -> duckdb.DuckDBPyConnection:
    """The pipeline's output as the page reads it, with its views."""
    sql = duckdb.connect(config={"file_search_path": str(out)})
    for statement in documented_sql():
        if "create view" in statement:
            sql.execute(statement)
    return sql


def levels_of(programs: Sequence[dict[str, Any]], sql: duckdb.DuckDBPyConnection) -> Levels:
    """A search as the pipeline tells it.

    Args:
        programs: What each rank printed.
        sql: Of `opened`.
    """
    words = sql.execute("select distinct dst_proc, word from levels order by all").fetchall()
    posted = sql.execute(
        "select level, src_proc, dst_proc, op, raddr, size_bytes, t_tsc from levels"
    )
    rows = [Posted(*row) for row in posted.fetchall()]
    rung = sql.execute(
        "select level, src_proc, dst_proc, count(*) from levels l"
        " join 'parquet/doorbells/*.parquet' d on d.proc = l.src_proc and d.qp = l.qp"
        f" and d.index = l.index + 1 and d.flags & {int(DoorbellFlag.AGAIN)} = 0 group by all"
    )
    seen = {(level, src, dst): count for level, src, dst, count in rung.fetchall()}
    return Levels(programs, rows, [(dst, word) for dst, word in words], seen)
