"""A stage of one's own: marks operations that follow the previous one within a microsecond."""

import numpy as np

from sigmatrace.stages.base import Stage


class Burst(Stage):
    name = "burst"
    requires = {"ops": {"t_ns": "i8"}}
    produces = {"ops": {"in_burst": "bool"}}

    def __init__(self, gap_ns: int = 1000):
        self.gap_ns = gap_ns

    def apply(self, part, resolved):
        gap = np.diff(part.column("ops", "t_ns"), prepend=0)
        return part.with_columns("ops", {"in_burst": (gap >= 0) & (gap < self.gap_ns)})
