"""Levels and barriers of gpu_bfs: what its kernels counted beside what its trace says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from sigmatrace.trace_format import DoorbellFlag, Op

PAGE = Path(__file__).parents[3] / "docs/gpu.md"
TAIL, IDS, EXCHANGED, COUNTED = "reserve", "ids", "exchanged", "counted"
_LINE_BYTES = 64

Way = tuple[int, int, int]
"""Level, from which rank, to which."""
Amount = tuple[int, int]
"""Operations and bytes."""


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


@dataclass(frozen=True)
class Levels:
    """A search that was traced.

    Attributes:
        programs: What each rank printed.
        sql: Of `opened`.
    """

    programs: Sequence[dict[str, Any]]
    sql: duckdb.DuckDBPyConnection

    def counted(self) -> dict[Way, dict[str, Any]]:
        """What the kernels say."""
        return {
            (level, rank, peer["rank"]): peer
            for rank, program in enumerate(self.programs)
            for level, said in enumerate(program["levels"])
            for peer in said["to"]
        }

    def words(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Each rank and the address of its barrier: as taken from the trace, as it is."""
        rows = self.sql.execute("select distinct dst_proc, word from levels order by all")
        right = [(rank, program[COUNTED]) for rank, program in enumerate(self.programs)]
        return [(dst, word) for dst, word in rows.fetchall()], right

    def _use(self, dst: int, op: int, raddr: int) -> str:
        """What an operation is for; the addresses are those that its target says."""
        at = self.programs[dst]
        tail = at[EXCHANGED] - _LINE_BYTES
        words = {tail: TAIL, at[EXCHANGED]: EXCHANGED, at[COUNTED]: COUNTED}
        return IDS if op == Op.PUT else words.get(raddr, "unknown")

    def traffic(self) -> tuple[dict[tuple[Way, str], Amount], dict[tuple[Way, str], Amount]]:
        """Of each level, pair of ranks and use: as traced, as counted."""
        found: Counter[tuple[Way, str]] = Counter()
        moved: Counter[tuple[Way, str]] = Counter()
        rows = self.sql.execute(
            "select level, src_proc, dst_proc, op, raddr, size_bytes from levels"
        )
        for level, src, dst, op, raddr, size_bytes in rows.fetchall():
            key = ((level, src, dst), self._use(dst, op, raddr))
            found[key] += 1
            moved[key] += size_bytes
        wanted = {
            (way, use): (peer[use]["count"], peer[use]["bytes"])
            for way, peer in self.counted().items()
            for use in (TAIL, IDS, EXCHANGED, COUNTED)
            if peer[use]["count"]
        }
        return {key: (count, moved[key]) for key, count in found.items()}, wanted

    def doorbells(self) -> tuple[dict[Way, int], dict[Way, int]]:
        """As traced, without repetitions, and as rung."""
        rows = self.sql.execute(
            "select level, src_proc, dst_proc, count(*) from levels l"
            " join 'parquet/doorbells/*.parquet' d on d.proc = l.src_proc and d.qp = l.qp"
            f" and d.index = l.index + 1 and d.flags & {int(DoorbellFlag.AGAIN)} = 0 group by all"
        )
        found = {(level, src, dst): count for level, src, dst, count in rows.fetchall()}
        return found, {way: peer["rings"] for way, peer in self.counted().items()}

    def barriers(self) -> list[tuple[int, int, int]]:
        """Of each barrier's atomic: when it was rung, when traced, when its target saw all come.

        By the clock of the kernels; that of the trace is the TSC.
        """
        counted, found = self.counted(), []
        rows = self.sql.execute(
            "select level, src_proc, dst_proc, raddr, t_tsc from levels"
            f" where op = {int(Op.ATOMIC_FETCH)}"
        )
        for level, src, dst, raddr, t_tsc in rows.fetchall():
            use = self._use(dst, Op.ATOMIC_FETCH, raddr)
            if use == TAIL:
                continue
            which = (EXCHANGED, COUNTED).index(use)
            passed = self.programs[dst]["levels"][level]["passed"][which]
            found.append((counted[level, src, dst]["posted"][which], t_tsc, passed))
        return found


def judge(levels: Levels, *, exact: bool) -> list[str]:
    """Returns what is not as it should be.

    Args:
        levels: A search that was traced without a loss.
        exact: Whether no two doorbells can have been seen as one, and no operation been done
            before its doorbell was.
    """
    wrong = []
    for what, (found, wanted) in (
        ("addresses of barriers", levels.words()),
        ("traffic", levels.traffic()),
    ):
        if found != wanted:
            wrong.append(f"{what}: {found} are not {wanted}")
    seen, rung = levels.doorbells()
    if seen.keys() != rung.keys() or any(seen[way] > rung[way] for way in rung):
        wrong.append(f"doorbells: {seen} of {rung}")
    if exact and seen != rung:
        wrong.append(f"doorbells: {seen} are not {rung}")
    barriers = levels.barriers()
    if len(barriers) != 2 * len(levels.counted()):
        wrong.append(f"{len(barriers)} atomics of barriers")
    if exact and {program["clock"] for program in levels.programs} == {"tsc"}:
        wrong += [f"barrier: {x}" for x in barriers if not x[0] <= x[1] <= x[2]]
    return wrong
