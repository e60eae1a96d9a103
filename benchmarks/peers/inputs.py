"""The events of a run in the formats of other tools."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

SEND = 1
COLUMNS = ("proc", "t_tsc", "t_ns", "op", "src_proc", "dst_proc", "size_bytes")
PACKET_EVENTS = 32768


def write(run: Path, folder: Path, formats: set[str]) -> None:
    """Write the events of a run into a folder for each format, by way of the exporter parquet."""
    from sigmatrace import api

    api.run(run, export=["parquet"], out=folder / "parquet-out")
    parquet = folder / "parquet-out" / "parquet"
    ops = pl.read_parquet(parquet / "ops" / "*.parquet", columns=list(COLUMNS))
    ops = ops.sort("proc", "t_ns", maintain_order=True)
    clocks = pl.read_parquet(parquet / "clocks.parquet", columns=["proc", "tsc", "wall_ns"])
    for name in sorted(formats):
        (folder / name).mkdir()
        WRITERS[name](ops, clocks, folder / name)


def _by_rank(ops: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    for (rank,), rows in ops.group_by("proc", maintain_order=True):
        yield int(rank), rows


def write_csv(ops: pl.DataFrame, clocks: pl.DataFrame, folder: Path) -> None:
    """One table of events with raw TSC, and one of clock readings."""
    ops.drop("t_ns").write_csv(folder / "events.csv")
    clocks.write_csv(folder / "clocks.csv")


def write_pfw(ops: pl.DataFrame, clocks: pl.DataFrame, folder: Path) -> None:
    """DFTracer's format: a gzipped JSON line per event, in microseconds, a file per rank."""
    name = pl.col("op").replace_strict({1: "send", 2: "recv"}, return_dtype=pl.String)
    line = pl.concat_str(
        pl.lit('{"id":'), pl.int_range(pl.len()),
        pl.lit(',"name":"'), name, pl.lit('","cat":"rdma","pid":'), "proc",
        pl.lit(',"tid":'), "proc", pl.lit(',"ts":'), pl.col("t_ns") // 1000,
        pl.lit(',"dur":1,"ph":"X","args":{"src":'), "src_proc", pl.lit(',"dst":'), "dst_proc",
        pl.lit(',"size":'), "size_bytes", pl.lit("}}"),
    )  # fmt: skip

    def write_rank(rank: int, rows: pl.DataFrame) -> None:
        text = rows.select(line).write_csv(include_header=False, quote_style="never")
        (folder / f"rank{rank}.pfw.gz").write_bytes(gzip.compress(text.encode(), 1))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: write_rank(*each), _by_rank(ops)))


def write_msgpack(ops: pl.DataFrame, clocks: pl.DataFrame, folder: Path) -> None:
    """A msgpack map per event, a file per rank, and the table of clock readings."""
    layout = [
        ("map", "S1"), ("_proc", "S5"), ("proc_", "u1"), ("proc", ">u4"),
        ("_t", "S2"), ("t_", "u1"), ("t_tsc", ">u8"), ("_op", "S3"), ("op", "u1"),
        ("_src", "S4"), ("src_", "u1"), ("src_proc", ">u4"),
        ("_dst", "S4"), ("dst_", "u1"), ("dst_proc", ">u4"),
        ("_size", "S5"), ("size_", "u1"), ("size_bytes", ">u8"),
    ]  # fmt: skip
    for rank, rows in _by_rank(ops):
        events = np.zeros(rows.height, layout)
        events["map"] = b"\x86"
        for key in ("proc", "t", "op", "src", "dst", "size"):
            events[f"_{key}"] = bytes([0xA0 + len(key)]) + key.encode()
        events["proc_"] = events["src_"] = events["dst_"] = 0xCE
        events["t_"] = events["size_"] = 0xCF
        for name in ("proc", "t_tsc", "op", "src_proc", "dst_proc", "size_bytes"):
            events[name] = rows[name].to_numpy()
        events.tofile(folder / f"rank{rank}.msgpack")
    clocks.write_csv(folder / "clocks.csv")


CTF_METADATA = """/* CTF 1.8 */
typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
trace {{
    major = 1; minor = 8; byte_order = le;
    packet.header := struct {{ uint32_t magic; uint32_t stream_id; }};
}};
clock {{ name = wall; freq = 1000000000; offset_s = {offset_s}; absolute = true; }};
typealias integer {{
    size = 64; align = 8; signed = false; map = clock.wall.value;
}} := time_t;
stream {{
    id = 0;
    packet.context := struct {{
        time_t timestamp_begin; time_t timestamp_end;
        uint64_t content_size; uint64_t packet_size;
    }};
    event.header := struct {{ uint8_t id; time_t timestamp; }};
}};
event {{ name = send; id = 1; stream_id = 0;
    fields := struct {{ uint32_t src; uint32_t dst; uint64_t size; }}; }};
event {{ name = recv; id = 2; stream_id = 0;
    fields := struct {{ uint32_t src; uint32_t dst; uint64_t size; }}; }};
"""
CTF_MAGIC = 0xC1FC1FC1


def write_ctf(ops: pl.DataFrame, clocks: pl.DataFrame, folder: Path) -> None:
    """A CTF trace of a stream per rank, on one clock: merging needs times that are comparable."""
    base_ns = int(ops["t_ns"].to_numpy().min()) // 10**9 * 10**9
    (folder / "metadata").write_text(CTF_METADATA.format(offset_s=base_ns // 10**9))
    layout = [("op", "u1"), ("t_ns", "<u8"), ("src_proc", "<u4"), ("dst_proc", "<u4")]
    layout.append(("size_bytes", "<u8"))
    for rank, rows in _by_rank(ops):
        events = np.zeros(rows.height, layout)
        for name, _ in layout:
            events[name] = rows[name].to_numpy()
        events["t_ns"] -= np.uint64(base_ns)
        with (folder / f"rank{rank}").open("wb") as file:
            for at in range(0, len(events), PACKET_EVENTS):
                packet = events[at : at + PACKET_EVENTS]
                file.write(_packet_head(packet) + packet.tobytes())


def _packet_head(events: np.ndarray) -> bytes:
    head = np.zeros(
        1, [("magic", "<u4"), ("stream", "<u4"), ("times", "<u8", 2), ("bits", "<u8", 2)]
    )
    head["magic"] = CTF_MAGIC
    head["times"] = events["t_ns"][[0, -1]]
    head["bits"] = (head.nbytes + events.nbytes) * 8
    return head.tobytes()


WRITERS: Mapping[str, Callable[[pl.DataFrame, pl.DataFrame, Path], None]] = {
    "csv": write_csv,
    "pfw": write_pfw,
    "msgpack": write_msgpack,
    "ctf": write_ctf,
}
