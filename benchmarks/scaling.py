"""What grows with a run, and how: the constants of the plan in ``docs/cluster.md``.

Synthetic runs of several widths (each rank has 8 peers) and lengths go through each step of
the pipeline on one thread; sizes are those of what is kept, or sent between processes.

    python -m benchmarks scaling --ranks 16 64 128 --events 2000 8000
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle

from benchmarks.machine import describe
from benchmarks.steps import Steps
from sigmatrace import api, passes
from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.capture.read import plan
from sigmatrace.cluster import Threads
from sigmatrace.cluster.base import Computation
from sigmatrace.cluster.remote import Distributed
from sigmatrace.progress import Progress
from sigmatrace.testing.synthetic import generate

PARTITION_BYTES = 1 << 20
CHUNK_RECORDS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--events", type=int, nargs="+", default=[2000, 8000], help="of a rank")
    options = parser.parse_args()
    print(describe())
    print(f"partitions of {PARTITION_BYTES >> 20} MiB, chunks of {CHUNK_RECORDS} records")
    rows = []
    for ranks in options.ranks:
        for events in options.events:
            with tempfile.TemporaryDirectory(prefix="sigmatrace-scaling-") as folder:
                rows.append(measure(Path(folder), ranks, events * ranks))
    print(f"{'Dask: CPU us a task':34}{dask_cost() * 1e6:>12.6g}")
    for name in rows[0]:
        print(f"{name:34}" + "".join(f"{row[name]:>12.6g}" for row in rows))


def measure(folder: Path, ranks: int, events: int) -> dict[str, float]:
    """Return everything that is known of one run, sizes in bytes and durations in CPU seconds."""
    run = folder / "run"
    generate(run, ranks=ranks, events=events, mode="simple", chunk_records=CHUNK_RECORDS)
    took = Steps()
    paths = find_rank_files(run)
    index_file(paths[0])  # compiled kernels are loaded
    with took.step("index"):
        files = [index_file(path) for path in paths]
    with took.step("merge"):
        made, bases = merge(files)
    specs = plan(files, bases, PARTITION_BYTES)
    channels, chunks = made.tables["channels"].num_rows, sum(len(one.chunks) for one in files)
    words = [f"run={run}", f"out={folder / 'out'}", "export=perfetto", "partition_mb=1"]
    settings = api.compose(words)
    sizes = Sizes()
    with sizes.watching():
        api.execute(settings)
    return {
        "ranks": ranks,
        "events": events,
        "channels": channels,
        "chunks": chunks,
        "partitions": len(specs),
        "index: bytes a file": size(files) / ranks,
        "index: bytes a channel": size(files) / channels,
        "index: CPU us a channel": took.ns["index"] / channels / 1e3,
        "merge: CPU us a channel": took.ns["merge"] / channels / 1e3,
        "run tables: bytes a channel": sum(one.nbytes for one in made.tables.values()) / channels,
        "partition: bytes of its spec": size(specs) / len(specs),
        "graph: tasks a partition": sizes.tasks / max(sizes.parts, 1),
        "graph: bytes a partition": sizes.graph_bytes / max(sizes.parts, 1),
        "work file: bytes a channel": sizes.work_bytes / channels,
        "outcome: bytes a channel": sizes.outcome_bytes / channels,
        **{f"  of {name}": part / channels for name, part in sizes.by_step.items()},
        "trace: bytes an event": trace_bytes(folder / "out") / events,
    }


def dask_cost(parts: int = 2000) -> float:
    """Return CPU seconds a task of scheduler, worker and client together, for empty tasks."""
    from distributed import LocalCluster

    graph: dict[Any, Any] = {("part", at): (abs, at) for at in range(parts)}
    counted = list(graph)
    graph["sum", 0] = (sum, counted)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, host="127.0.0.1",
            protocol="tcp://", dashboard_address="127.0.0.1:0",
        ) as local,
        Distributed(local.scheduler_address) as cluster,
        Progress("", parts, None) as progress,
    ):  # fmt: skip
        cluster.compute(Computation({("one", 0): (abs, 1)}, ("one", 0)), progress)  # connected
        start = time.process_time()
        wanted = Computation(graph, ("sum", 0), counted)
        assert cluster.compute(wanted, progress) == sum(range(parts))
        return (time.process_time() - start) / len(graph)


class Sizes:
    """Notes how large the graph of the pass over the events is, and its outcome."""

    def __init__(self) -> None:
        self.tasks = self.parts = self.graph_bytes = self.outcome_bytes = self.work_bytes = 0
        self.by_step: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        plain: Callable[..., Any] = Threads.compute

        def compute(cluster: Threads, wanted: Computation, progress: Progress) -> Any:
            result = plain(cluster, wanted, progress)
            if str(wanted.key[0]).startswith("last-"):
                self.tasks, self.parts = len(wanted.graph), len(wanted.counted)
                self.graph_bytes = len(cloudpickle.dumps(wanted.graph))
                self.outcome_bytes = size(result)
                tasks = wanted.graph.values()
                work = next(task[1] for task in tasks if task[0] is passes._do_part)
                self.work_bytes = work._path.stat().st_size
                names = [step.name for step in work.value.summed]
                for name, part in zip(names, result.summaries, strict=True):
                    self.by_step[name] = size(part)
                for step, made in zip(work.value.exporters, result.pieces, strict=True):
                    self.by_step[step.name] = size(made)
            return result

        with mock.patch.object(Threads, "compute", compute):
            yield


def size(value: Any) -> int:
    return len(pickle.dumps(value, protocol=5))


def trace_bytes(out: Path) -> int:
    return sum(path.stat().st_size for path in out.glob("*.pftrace*"))


if __name__ == "__main__":
    main()
