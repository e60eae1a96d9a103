"""Many rank files, and ranks that all talk to all: what grows with them, and what must not.

Sizes are counted, not timed: tasks, partitions, bytes of what goes to a worker, open files.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sigmatrace import api, passes, pipeline
from sigmatrace.cluster import Shared, Threads
from sigmatrace.sink import Sink
from sigmatrace.stages.messages import Messages
from sigmatrace.testing.synthetic import generate

OPEN_FILES = 256
FILES = 1000
PARTITION = 1 << 20
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from sigmatrace.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A thousand rank files of 40 operations each, and their truth."""
    folder = tmp_path_factory.mktemp("many") / "run"
    return folder, generate(folder, ranks=FILES, events=40 * FILES, hosts=20, peers=3)


def indexed_of(folder: Path, partition_bytes: int = PARTITION) -> pipeline.Indexed:
    return pipeline.index(folder, Threads(workers=2), partition_bytes=partition_bytes)


def work_of(indexed: pipeline.Indexed, exchanges=()) -> passes.Work:
    sink = Sink(Path(), "unused")
    nothing: frozenset[tuple[str, str]] = frozenset()
    chosen = (), tuple(exchanges), (), (), nothing
    return passes.Work(*chosen, indexed.run, Path(), sink, pipeline.BUCKETS)


def run_with_few_files(files: int, *words: str) -> None:
    command = [sys.executable, "-c", LIMITED, str(files), *words, "cluster.workers=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_thousand_files_pass_with_few_open(many, tmp_path):
    folder, truth = many
    out = tmp_path / "out"
    run_with_few_files(
        OPEN_FILES, f"run={folder}", f"out={out}", "export=[json,csv,parquet,matrix,perfetto]"
    )
    ledger = json.loads((out / "ledger.json").read_text())
    assert ledger["balanced"] and ledger["lossless"]
    assert ledger["stages"]["match"]["sends_matched"] == int(truth.pairs["matched"].sum())
    by_rank = json.loads((out / "summary.json").read_text())["traffic"]["by_rank"]
    sent = {
        (row["src_proc"], row["dst_proc"]): row["count"] for row in by_rank if row["op"] == "send"
    }
    ends = zip(*(truth.pairs[key].tolist() for key in ("src", "dst", "sent")), strict=True)
    assert sent == {(src, dst): count for src, dst, count in ends if count}


def test_a_hundred_files_of_a_trace_are_written_with_few_open(tmp_path):
    run, split = tmp_path / "run", "export.perfetto.split=ranks:1"
    generate(run, ranks=100, events=2000)
    run_with_few_files(64, f"run={run}", "export=perfetto", split, f"out={tmp_path / 'few'}")
    whole = api.run(run, out=tmp_path / "many", overrides=[split])
    assert len(whole.files["perfetto"]) == 101
    for path in whole.files["perfetto"]:
        assert path.read_bytes() == (tmp_path / "few" / path.name).read_bytes()


def test_small_files_share_partitions(many):
    indexed = indexed_of(many[0])
    data = sum(spec.data_bytes for spec in indexed.partitions)
    assert len(indexed.partitions) <= data // (PARTITION // 2) + 1
    assert sum(len(spec.pieces) for spec in indexed.partitions) == FILES


def test_graph_and_what_a_worker_gets_grow_with_partitions_alone(many):
    indexed = indexed_of(many[0], 20_000)
    whole = indexed.partitions
    assert len(whole) > 50
    half = whole[: len(whole) // 2]
    for exchanges, tasks in ((), 2), ((Messages(),), 3 + pipeline.BUCKETS):
        work = work_of(indexed, exchanges)
        graphs = [passes.graph_of(Shared(work, Path()), specs)[0] for specs in (half, whole)]
        few, many_tasks = map(len, graphs)
        assert many_tasks - few <= tasks * (len(whole) - len(half))
    small, large = (len(pickle.dumps(list(specs))) for specs in (half, whole))
    assert large < 2.2 * small


def test_what_a_worker_gets_does_not_grow_with_channels(tmp_path):
    sizes = []
    for peers in (1, 39):
        folder = tmp_path / str(peers)
        generate(folder, ranks=40, events=4000, peers=peers)
        indexed = indexed_of(folder)
        assert indexed.run.tables["channels"].num_rows == 2 * 40 * peers
        sizes.append(len(pickle.dumps(indexed.partitions)))
    assert sizes[1] < 1.05 * sizes[0]


def test_all_to_all_is_the_truth_in_every_exporter(tmp_path):
    ranks = 48
    truth = generate(tmp_path / "run", ranks=ranks, events=40_000, peers=ranks - 1, hosts=48)
    names = ["perfetto", "json", "csv", "parquet", "matrix"]
    result = api.run(tmp_path / "run", export=names, out=tmp_path / "out")
    assert result.ledger["balanced"] and result.ledger["lossless"]
    pairs = np.zeros((ranks, ranks), np.int64)
    pairs[truth.pairs["src"], truth.pairs["dst"]] = truth.pairs["sent_bytes"]
    traffic = result.tables["traffic"].to_pylist()
    found = np.zeros((ranks, ranks), np.int64)
    for row in traffic:
        if row["op"] == 1:
            found[row["src_proc"], row["dst_proc"]] = row["size_bytes"]
    assert np.array_equal(found, pairs)
    by_host = json.loads((tmp_path / "out" / "summary.json").read_text())["traffic"]["by_host"]
    assert sum(row["size_bytes"] for row in by_host if row["op"] == "send") == pairs.sum()
