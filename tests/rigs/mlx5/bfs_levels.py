"""Levels and barriers of gpu_bfs: what its kernels counted beside what its trace says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sigmatrace.trace_format import Op

TAIL, IDS, EXCHANGED, COUNTED = "reserve", "ids", "exchanged", "counted"
_LINE_BYTES = 64

Way = tuple[int, int, int]
"""Level, from which rank, to which."""
Amount = tuple[int, int]
"""Operations and bytes."""


class Posted(NamedTuple):
    """An operation of the trace; its op is `Op.PUT` or `Op.ATOMIC_FETCH`."""

    level: int
    src: int
    dst: int
    op: int
    raddr: int
    size_bytes: int
    t_tsc: int


@dataclass(frozen=True)
class Levels:
    """A search that was traced, by the pipeline's output or by the rank files themselves.

    Attributes:
        programs: What each rank printed.
        posted: All operations.
        barriers_at: Rank and address of each barrier, as taken from the trace; sorted.
        rung: Doorbells, without repetitions.
    """

    programs: Sequence[dict[str, Any]]
    posted: Sequence[Posted]
    barriers_at: Sequence[tuple[int, int]]
    rung: Mapping[Way, int]

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
        right = [(rank, program[COUNTED]) for rank, program in enumerate(self.programs)]
        return list(self.barriers_at), right

    def _use(self, posted: Posted) -> str:
        """What an operation is for; the addresses are those that its target says."""
        at = self.programs[posted.dst]
        tail = at[EXCHANGED] - _LINE_BYTES
        words = {tail: TAIL, at[EXCHANGED]: EXCHANGED, at[COUNTED]: COUNTED}
        return IDS if posted.op == Op.PUT else words.get(posted.raddr, "unknown")

    def traffic(self) -> tuple[dict[tuple[Way, str], Amount], dict[tuple[Way, str], Amount]]:
        """Of each level, pair of ranks and use: as traced, as counted."""
        found: Counter[tuple[Way, str]] = Counter()
        moved: Counter[tuple[Way, str]] = Counter()
        for posted in self.posted:
            key = ((posted.level, posted.src, posted.dst), self._use(posted))
            found[key] += 1
            moved[key] += posted.size_bytes
        wanted = {
            (way, use): (peer[use]["count"], peer[use]["bytes"])
            for way, peer in self.counted().items()
            for use in (TAIL, IDS, EXCHANGED, COUNTED)
            if peer[use]["count"]
        }
        return {key: (count, moved[key]) for key, count in found.items()}, wanted

    def doorbells(self) -> tuple[dict[Way, int], dict[Way, int]]:
        """As traced, without repetitions, and as rung."""
        return dict(self.rung), {way: peer["rings"] for way, peer in self.counted().items()}

    def barriers(self) -> list[tuple[int, int, int]]:
        """Of each barrier's atomic: when it was rung, when traced, when its target saw all come.

        By the clock of the kernels; that of the trace is the TSC.
        """
        counted, found = self.counted(), []
        for posted in self.posted:
            use = self._use(posted)
            if posted.op != Op.ATOMIC_FETCH or use == TAIL:
                continue
            which = (EXCHANGED, COUNTED).index(use)
            passed = self.programs[posted.dst]["levels"][posted.level]["passed"][which]
            rang = counted[posted.level, posted.src, posted.dst]["posted"][which]
            found.append((rang, posted.t_tsc, passed))
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
