"""An MPI program that knows what it sends: the judge of the MPI tests.

Every rank writes ``truth-<rank>.json``: per phase, the bytes and messages that it sent to each
rank at the MPI level. Phases are regions of the trace, with barriers between them, so that the
traffic of start-up, barriers and shutdown does not mix with theirs.

Usage: mpiexec -n 4 python mpi_program.py FOLDER [no-accumulate]
(Open MPI 5.0.11 over UCX's tcp transport hangs in Win_free after an Accumulate in a third of all
runs, traced or not: one rank waits in ucp_ep_destroy for peers that have closed their workers.
See open-mpi/ompi pull request 13216. Without the Accumulate it does not.)
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from mpi4py import MPI

from sigmatrace.capture import control

SIZES = (0, 1, 8, 1000, 8192, 65536, 1 << 20, 4 << 20)
TAG = 7


class Program:
    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.sent: dict[str, Counter] = {}
        self.messages: dict[str, Counter] = {}

    def count(self, phase: str, to: int, size: int) -> None:
        self.sent.setdefault(phase, Counter())[to] += size
        self.messages.setdefault(phase, Counter())[to] += 1

    def point_to_point(self) -> None:
        """Blocking: every ordered pair, every size, one pair at a time."""
        for source in range(self.size):
            for target in range(self.size):
                if source == target:
                    continue
                for size in SIZES:
                    if self.rank == source:
                        self.comm.Send(pattern(size, source), dest=target, tag=TAG)
                        self.count("point_to_point", target, size)
                    elif self.rank == target:
                        buffer = np.empty(size, np.uint8)
                        self.comm.Recv(buffer, source=source, tag=TAG)
                        assert (buffer == pattern(size, source)).all()

    def wildcards(self) -> None:
        """Nonblocking: each rank posts wildcard receives, all send at once, large before small."""
        others = [r for r in range(self.size) if r != self.rank]
        buffers = [np.empty(SIZES[-1], np.uint8) for _ in others for _ in SIZES]
        receives = [self.comm.Irecv(b, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) for b in buffers]
        self.comm.Barrier()
        with control.region("wildcards"):
            sends = []
            for size in reversed(SIZES):
                for target in others:
                    data = pattern(size, self.rank)
                    sends.append(self.comm.Isend(data, dest=target, tag=TAG))
                    self.count("wildcards", target, size)
            statuses = [MPI.Status() for _ in receives]
            MPI.Request.Waitall(receives, statuses)
            MPI.Request.Waitall(sends)
        got = Counter((s.Get_source(), s.Get_count(MPI.BYTE)) for s in statuses)
        assert got == Counter((r, size) for r in others for size in SIZES)

    def collectives(self) -> None:
        counts = [1000 * (1 + self.rank + r) for r in range(self.size)]
        incoming = [1000 * (1 + self.rank + r) for r in range(self.size)]
        send, receive = np.ones(sum(counts), np.uint8), np.empty(sum(incoming), np.uint8)
        self.comm.Alltoallv((send, counts), (receive, incoming))
        for target, size in enumerate(counts):
            if target != self.rank:
                self.count("collectives", target, size)
        total = np.empty(1000)
        self.comm.Allreduce(np.full(1000, float(self.rank)), total)
        assert (total == sum(range(self.size))).all()

    def one_sided(self) -> None:
        memory = np.zeros(1 << 16, np.int64)
        window = MPI.Win.Create(memory, disp_unit=8, comm=self.comm)
        right = (self.rank + 1) % self.size
        window.Fence()
        mine, ones = np.full(1000, self.rank, np.int64), np.ones(10, np.int64)
        window.Put(mine, right, target=0)
        self.count("one_sided", right, 8000)
        window.Fence()
        assert (memory[:1000] == (self.rank - 1) % self.size).all()
        got = np.empty(1000, np.int64)
        window.Get(got, right, target=0)
        window.Fence()
        assert (got == self.rank).all()
        if "no-accumulate" not in sys.argv:
            window.Accumulate(ones, right, target=2000, op=MPI.SUM)
            window.Fence()
            assert (memory[2000:2010] == 1).all()
        window.Free()

    def run(self) -> dict[str, object]:
        for phase in ("point_to_point", "collectives", "one_sided"):
            self.comm.Barrier()
            with control.region(phase):
                getattr(self, phase)()
        self.comm.Barrier()
        self.wildcards()
        self.comm.Barrier()
        return {"rank": self.rank, "sent": self.sent, "messages": self.messages}


def pattern(size: int, rank: int) -> np.ndarray:
    return np.full(size, 17 * (rank + 1), np.uint8)


def main() -> None:
    program = Program(MPI.COMM_WORLD)
    truth = program.run()
    (Path(sys.argv[1]) / f"truth-{program.rank}.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main()
