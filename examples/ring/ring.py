"""Heat on a rod that is bent to a ring: each rank swaps its edges with both neighbours.

It marks its phases and a counter in the trace; without a trace these calls do nothing.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from sigmatrace.capture import control

STEPS, WIDTH, LENGTH = 40, 65536, 8
LEFTWARDS, RIGHTWARDS, ROOT = 1, 2, 0


def main() -> None:
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    rod = np.zeros((LENGTH + 2, WIDTH))
    rod[1:-1] = float(rank == ROOT)
    total = np.empty(1)
    comm.Barrier()
    for _ in range(STEPS):
        with control.region("exchange edges"):
            requests = [
                comm.Irecv(rod[0], left, RIGHTWARDS),
                comm.Irecv(rod[-1], right, LEFTWARDS),
                comm.Isend(rod[1], left, LEFTWARDS),
                comm.Isend(rod[-2], right, RIGHTWARDS),
            ]
            MPI.Request.Waitall(requests)
        with control.region("compute"):
            rod[1:-1] += 0.25 * (rod[2:] - 2 * rod[1:-1] + rod[:-2])
        with control.region("sum up"):
            comm.Allreduce(np.array([rod[1:-1].sum()]), total)
        control.counter("heat of this rank", float(rod[1:-1].mean()))
    assert abs(total[0] - LENGTH * WIDTH) < 1e-6 * LENGTH * WIDTH, "heat was lost"


if __name__ == "__main__":
    main()
