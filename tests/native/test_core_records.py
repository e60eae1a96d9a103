"""What the core stores is what the program did: counts, layouts, threads, objects."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from native_run import environment
from plain_reader import RECORD_FORMATS, crc32c

from sigmatrace.trace_format import RECORDS, Schema


def test_the_plain_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial


def test_layouts_agree_with_the_schema(driver: Path) -> None:
    told = subprocess.run([driver, "layouts"], capture_output=True, text=True, check=True).stdout
    native: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    sizes = {}
    for line in told.splitlines():
        name, field, offset, size = line.split()
        if field == ".":
            sizes[name] = int(size)
        else:
            native[name].append((field, int(offset), int(size)))
    for schema, dtype in RECORDS.items():
        name = schema.name.lower()
        assert dtype.fields is not None and dtype.names is not None
        assert sizes[name] == dtype.itemsize
        assert native[name] == [
            (field, dtype.fields[field][1], dtype.fields[field][0].itemsize)
            for field in dtype.names
        ]


def test_header_describes_the_records_and_the_process(drive) -> None:
    result = drive("count", 1, SIGMATRACE_RUN_ID="r1", PMI_RANK="3", PMI_SIZE="8")
    rank = result.rank()
    header = rank.header
    for schema, dtype in RECORDS.items():
        said = header["schemas"][str(schema.value)]
        assert said["name"] == schema.name.lower()
        assert said["size"] == dtype.itemsize
        assert np.dtype([(n, d) for n, d, _unit in said["fields"]]) == dtype
    assert (header["rank"], header["world"], header["rank_source"]) == (3, 8, "PMI_RANK")
    assert header["run_id"] == "r1" and header["mode"] == "simple"
    assert header["layers"] == ["ofi", "ucp"]
    assert header["command"][1:] == ["count", "1"] and header["exe"].endswith("/driver")
    name = f"{header['host']}-{header['pid']}-{header['start_ns']}.msgpack"
    assert rank.path.name == name
    assert header["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert list(header["calls"].values()) == ["driver_send"]


@pytest.mark.parametrize(
    ("variables", "known"),
    [
        ({"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "4"}, (2, 4, "FLUX_TASK_RANK")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (-1, -1, "")),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (1, 4, "SLURM_PROCID")),
    ],
)
def test_ranks_of_launchers(drive, variables, known) -> None:
    header = drive("count", 1, **variables).rank().header
    assert (header["rank"], header["world"], header["rank_source"]) == known


def test_counts_are_exact_over_many_segments(drive) -> None:
    n = 30_000
    rank = drive("count", n, SIGMATRACE_SEGMENT_KIB="16").rank()
    ops = rank.records(1)
    assert [op["size_bytes"] for op in ops] == list(range(1, n + 1))
    assert len([c for c in rank.chunks if c["schema"] == 1]) > 50
    channels = rank.records(2)
    assert sorted(c["id"] for c in channels) == list(range(10))
    for channel in channels:
        ordinals = [op["ordinal"] for op in ops if op["channel"] == channel["id"]]
        assert ordinals == list(range(n // 10))
    assert rank.end is not None and rank.end["reason"] == "exit" and rank.end["lost"] == {}
    assert rank.end["schemas"]["1"] == {"written": n, "dropped": 0}
    assert rank.bad_bytes == 0 and len(rank.clocks) >= 2


def test_times_and_clock_pairs_are_plausible(drive) -> None:
    rank = drive("count", 1000).rank()
    first, last = rank.clocks[0], rank.clocks[-1]
    times = [op["t_tsc"] for op in rank.records(1)]
    assert times == sorted(times) and first["tsc"] < times[0] and times[-1] < last["tsc"]
    assert first["wall_ns"] >= rank.header["start_ns"]
    assert first["source"] == "realtime" and first["width_tsc"] < 10_000_000
    hz = rank.header["tsc_hz"]
    assert 0.1e9 < hz < 20e9


@pytest.mark.parametrize(("wanted", "said"), [("tai", "tai"), ("/dev/ptp99", "realtime")])
def test_choice_of_the_clock(drive, wanted: str, said: str) -> None:
    result = drive("count", 1, SIGMATRACE_CLOCK=wanted)
    assert result.rank().header["clock"] == said
    assert ("cannot be read" in result.stderr) == (wanted != said)


def test_threads_share_a_channel(drive) -> None:
    threads, n = 4, 4000
    rank = drive("threads", threads, n, SIGMATRACE_SEGMENT_KIB="32").rank()
    ops = rank.records(1)
    assert len(ops) == 2 * threads * n
    channels = {c["id"]: c for c in rank.records(2)}
    assert len(channels) == len(rank.records(2)) == threads * 10 + 1
    by_channel = defaultdict(list)
    for op in ops:
        by_channel[op["channel"]].append(op["ordinal"])
    for channel, ordinals in by_channel.items():
        assert sorted(ordinals) == list(range(len(ordinals)))
        assert channels[channel]["thread_shared"] == (channels[channel]["peer"] == 1000)
    names = {item["tid"]: item["name"] for item in rank.objects_of("thread")}
    assert {names[tid] for tid in {op["thread"] for op in ops}} == {
        f"job {i}" for i in range(threads)
    }


def test_threads_that_open_the_files_together(drive) -> None:
    threads, n = 6, 200
    rank = drive("race", threads, n).rank()
    assert len(rank.records(1)) == threads * n and rank.end["lost"] == {}
    assert sorted(o["depth"] for o in rank.objects_of("ofi_endpoint")) == list(range(threads))
    assert {o["name"] for o in rank.objects_of("library")} == {"libfabric"}


def test_areas_of_ended_threads_are_used_again(drive) -> None:
    rank = drive("reuse", 50, 100, SIGMATRACE_SEGMENT_KIB="8").rank()
    assert len(rank.records(1)) == 50 * 200
    per_thread = Counter(op["thread"] for op in rank.records(1))
    assert sum(per_thread.values()) == 50 * 200
    assert rank.end is not None and rank.end["schemas"]["1"]["written"] == 50 * 200


def test_every_schema_and_object(drive) -> None:
    rank = drive("all", SIGMATRACE_MODE="full").rank()
    (op,), (completion,), (target,) = rank.records(1), rank.records(3), rank.records(6)
    assert op["size_bytes"] == 2**64 - 1 and op["depth"] == 1 and op["aux"] == 9
    assert completion["status"] == -5 and completion["flags"] == 8
    assert (target["raddr"], target["rkey"], target["context"]) == (1, 2, 3)
    marks = rank.records(4)
    names = {item["id"]: item["name"] for item in rank.objects_of("name")}
    assert [(names[m["name"]], m["kind"], m["value"]) for m in marks] == [
        ("loss", 3, 2.5),
        ("step", 1, 0.0),
        ("step", 2, 0.0),
    ]
    first, closed = rank.objects_of("ofi_endpoint")
    assert first["prov"] == "tcp?ä" and first["local"] == b"\1\0\2" and first["caps"] == 2**63
    assert closed["id"] == first["id"] and closed["closed_tsc"] >= first["t_tsc"]
    (library,) = rank.objects_of("library")
    assert (library["name"], library["version"], library["layer"]) == ("libfabric", "1.2.3", "ofi")
    assert rank.end is not None and rank.end["lost"] == {"for the test": 3}


def test_simple_mode_keeps_no_completions(drive) -> None:
    rank = drive("all").rank()
    assert len(rank.records(1)) == 1 and not rank.records(3) and not rank.records(6)


def test_aggregate_rows_add_up(drive) -> None:
    depths, n = 3, 30_000  # more rows than the first levels hold
    rank = drive("aggregate", depths, n, SIGMATRACE_MODE="aggregate").rank()
    assert not rank.records(1)
    channels = {c["id"]: c for c in rank.records(2)}
    assert len(channels) == 2000
    assert {(c["tag"], c["data"], c["flags"]) for c in channels.values()} == {(0, 0, 0)}
    nested = 32
    expected: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i in range(n):
        flags = 0 if i % 7 else nested  # no other flag tells rows apart
        expected[i % 2000, i % depths, flags, i.bit_length()].append(i)
    assert len(expected) > 4096
    rows = {}
    for row in rank.records(5):
        key = channels[row["channel"]]["peer"], row["depth"], row["flags"], row["size_bits"]
        assert key not in rows
        rows[key] = [row["count"], row["size_bytes"]]
    assert rows == {key: [len(v), sum(v)] for key, v in expected.items()}


def test_aggregate_rows_are_those_of_the_sizes_bit_lengths(drive) -> None:
    rank = drive("sizes", 7, SIGMATRACE_MODE="aggregate").rank()
    expected = {(1, 255): (7, 0), (4, 64): (1, 2**64 - 1)}
    for k in range(64):  # 2^k - 1 ends a class, 2^k begins the next one
        expected[1, k] = (1, 2**k - 1)
        expected[3, k + 1] = (1, 2**k)
    rows = rank.records(5)
    assert len(rows) == len(expected)
    assert {(r["op"], r["size_bits"]): (r["count"], r["size_bytes"]) for r in rows} == expected
    assert {r["flags"] for r in rows if r["size_bits"] == 255} == {32}
    assert {r["flags"] for r in rows if r["size_bits"] != 255} == {0}
    assert {(r["channel"], r["depth"]) for r in rows} == {(0, 0)}
    assert rank.end is not None and rank.end["schemas"]["5"] == {"written": 130, "dropped": 0}


def test_more_channels_than_wanted(drive) -> None:
    result = drive("tags", 300, SIGMATRACE_MAX_CHANNELS="100")
    rank = result.rank()
    channels = {c["id"]: c for c in rank.records(2)}
    assert len(channels) == 101
    (overflow,) = [c for c in channels.values() if c["flags"] & 4]
    assert overflow["tag"] == 0 and not overflow["flags"] & 1
    assert (overflow["peer"], overflow["object"]) == (1, rank.objects_of("ofi_endpoint")[0]["id"])
    counts = Counter(op["channel"] for op in rank.records(1))
    assert counts[overflow["id"]] == 200 and sum(counts.values()) == 300
    assert result.stderr.count("SIGMATRACE_MAX_CHANNELS") == 1


def test_far_more_peers_than_channels(drive) -> None:
    rank = drive("peers", 500, SIGMATRACE_MAX_CHANNELS="100").rank()
    channels = {c["id"]: c for c in rank.records(2)}
    last = [c for c in channels.values() if c["peer"] == 2**64 - 1]
    assert len(channels) == 201 and len(last) == 1 and last[0]["object"] == 0
    counts = Counter(op["channel"] for op in rank.records(1))
    assert sum(counts.values()) == 500 and counts[last[0]["id"]] == 300


def test_pending_map_under_threads(drive) -> None:
    n = 20_000
    result = drive("pending", n)
    assert result.told == {"count": 2 * n, "sum": n * (n + 1)}
    lost = result.rank().end["lost"]
    assert lost == {"pending operation: no context": 1}


def test_signal_handlers_that_record(drive) -> None:
    n = 40_000
    result = drive("signals", n, SIGMATRACE_SEGMENT_KIB="16")
    rank = result.rank()
    end = rank.end["schemas"]
    assert end["1"]["written"] + end["1"]["dropped"] == n + result.told["handled"]
    ops = rank.records(1)
    assert len(ops) == end["1"]["written"]
    peer = {c["id"]: c["peer"] for c in rank.records(2)}
    assert len(peer) == len(rank.records(2)) and {op["channel"] for op in ops} <= peer.keys()
    # The program itself sends to peer 0, sizes 1 to n, each once; its handler sends to peer 500.
    own = [op["size_bytes"] for op in ops if peer[op["channel"]] == 0]
    assert len(own) == len(set(own)) and set(own) <= set(range(1, n + 1))
    others = {op["size_bytes"] for op in ops if peer[op["channel"]] != 0}
    assert others <= {5} and rank.bad_bytes == 0


def test_number_of_schemas() -> None:
    assert {schema.value for schema in Schema} == RECORD_FORMATS.keys()


def test_environment_is_clean() -> None:
    assert not [key for key in environment(None) if key.startswith("SIGMATRACE_")]
