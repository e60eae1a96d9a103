"""sigmatrace-pack: bytes of an event, and CPU time of packing, unpacking and reading.

Times are CPU of one thread, medians of interleaved repeats; rates are bytes of raw records. What
is read from packed files is compared with what is read from raw ones.

    python -m benchmarks pack_cost --ranks 16 --events 2000000 --mode simple --repeat 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import machine
from sigmatrace.capture import items
from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.packed import records_of
from sigmatrace.capture.packing import Packing, beside
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.capture.read import plan, read
from sigmatrace.capture.repack import rewrite
from sigmatrace.partition import Partition
from sigmatrace.testing.synthetic import generate
from sigmatrace.trace_format import RECORDS, Item, Schema

PARTITION_BYTES = 12 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--mode", choices=("simple", "full"), default="simple")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    scratch = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=scratch, prefix="sigmatrace-bench-") as name:
        measure(Path(name), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    raw, packed = folder / "raw", folder / "packed"
    generate(raw, ranks=options.ranks, events=options.events, mode=options.mode)
    done = beside(raw, packed, unpack=False)
    check(raw, packed)
    chunks = packed_chunks(packed)
    work: dict[str, Callable[[], object]] = {
        "pack: files to packed files": lambda: pack_all(raw, folder / "new"),
        "unpack: packed data to records": lambda: [unpack(*chunk) for chunk in chunks],
        "read raw files to tables": lambda: read_all(raw),
        "read packed files to tables": lambda: read_all(packed),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.repeat):
        for name, do in work.items():
            start = time.process_time()
            do()
            seconds[name].append(time.process_time() - start)
    report(done, {name: statistics.median(times) for name, times in seconds.items()}, options)


def pack_all(run: Path, target: Path) -> None:
    for path in find_rank_files(run):
        rewrite(path, target)
        target.unlink()


def packed_chunks(run: Path) -> list[tuple[np.ndarray, items.Chunk]]:
    found = []
    for path in find_rank_files(run):
        data = path.read_bytes()
        for span in items.walk(data):
            if span.kind == Item.CHUNK and span.chunk is not None:
                item = np.frombuffer(data, np.uint8, span.size, span.offset)
                found.append((item, span.chunk))
    return found


def unpack(item: np.ndarray, chunk: items.Chunk) -> None:
    records_of(item, chunk.schema, chunk.records, chunk.codec)


def partitions(run: Path) -> Iterator[Partition]:
    """Read a run as the pipeline does."""
    indexes = [index_file(path) for path in find_rank_files(run)]
    _, bases = merge(indexes, None)
    for spec in plan(indexes, bases, PARTITION_BYTES):
        yield read(spec)[0]


def read_all(run: Path) -> None:
    for _ in partitions(run):
        pass


def check(raw: Path, packed: Path) -> None:
    """Refuse to print numbers of files that are not read alike."""
    for one, other in zip(partitions(raw), partitions(packed), strict=True):
        for name, table in one.tables.items():
            assert table.equals(other.tables[name]), name


def report(done: Packing, seconds: dict[str, float], options: argparse.Namespace) -> None:
    files = done.files
    records = sum(one.records for one in files)
    size = sum(one.record_bytes for one in files)
    before, after = (sum(getattr(one, name) for one in files) for name in ("before", "after"))
    print(f"sigmatrace-pack, mode {options.mode}: {machine.describe()}")
    print(f"{records} events of {options.ranks} ranks, {before} -> {after} bytes of files")
    print(f"bytes of an event, with its chunk's prefix: {size / records:.2f}")
    record_bytes = RECORDS[Schema.OP].itemsize
    for name, time_s in seconds.items():
        rate = records * record_bytes / time_s / 1e9
        print(f"{name:34} {time_s / records * 1e9:6.1f} ns/event {rate:6.2f} GB/s a core")


if __name__ == "__main__":
    main()
