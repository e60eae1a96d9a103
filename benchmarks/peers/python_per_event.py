"""The same work event by event, as NPKit's converter does it: dicts, then one JSON document.

FOLDER has clocks.csv and a file per rank of one msgpack map per event.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict, deque
from pathlib import Path

import msgpack

SEND = 1


def main() -> None:
    folder = Path(sys.argv[1])
    clocks = read_clocks(folder / "clocks.csv")
    events = []
    for path in sorted(folder.glob("*.msgpack")):
        with path.open("rb") as file:
            for event in msgpack.Unpacker(file):
                events.append(converted(event, clocks[event["proc"]]))
    events.sort(key=lambda event: event["ts"])
    matched, matrix = correlate(events)
    with (folder / "per-event.json").open("w") as out:
        out.write(json.dumps({"traceEvents": events}))
    total = sum(size for _, size in matrix.values())
    print(json.dumps({"events": len(events), "matched": matched, "bytes": total}))


def read_clocks(path: Path) -> dict[int, tuple[int, int, float]]:
    """Return (TSC, wall clock, ns per tick) by process, from its first and last reading."""
    readings = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            readings[int(row["proc"])].append((int(row["tsc"]), int(row["wall_ns"])))
    clocks = {}
    for proc, pairs in readings.items():
        (tsc0, wall0), (tsc1, wall1) = min(pairs), max(pairs)
        clocks[proc] = tsc0, wall0, (wall1 - wall0) / (tsc1 - tsc0)
    return clocks


def converted(event: dict, clock: tuple[int, int, float]) -> dict:
    """Return an event of Chrome's JSON format, but with whole nanoseconds."""
    tsc0, wall0, slope = clock
    return {
        "ph": "X",
        "name": "send" if event["op"] == SEND else "recv",
        "pid": event["proc"],
        "tid": event["proc"],
        "ts": wall0 + int((event["t"] - tsc0) * slope),
        "dur": 0,
        "args": {"src": event["src"], "dst": event["dst"], "size": event["size"]},
    }


def correlate(events: list[dict]) -> tuple[int, dict[tuple[int, int], list[int]]]:
    """Match the k-th send of a pair with its k-th receive; return how many, and the matrix."""
    waiting: dict[tuple[int, int, bool], deque] = defaultdict(deque)
    matrix: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    matched = 0
    for number, event in enumerate(events):
        args = event["args"]
        pair, is_send = (args["src"], args["dst"]), event["name"] == "send"
        if is_send:
            matrix[pair][0] += 1
            matrix[pair][1] += args["size"]
        others = waiting[*pair, not is_send]
        if others:
            args["flow"] = events[others.popleft()]["args"]["flow"] = matched
            matched += 1
        else:
            waiting[*pair, is_send].append(number)
    return matched, matrix


if __name__ == "__main__":
    main()
