"""The same work in Polars: clocks, matching, matrix, export. FOLDER has events.csv, clocks.csv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

SEND, RECV = 1, 2


def main() -> None:
    folder = Path(sys.argv[1])
    pairs = pl.read_csv(folder / "clocks.csv").sort("proc", "tsc")
    clocks = pairs.group_by("proc").agg(
        pl.col("tsc").first().alias("tsc0"),
        pl.col("wall_ns").first().alias("wall0"),
        (
            (pl.col("wall_ns").last() - pl.col("wall_ns").first())
            / (pl.col("tsc").last() - pl.col("tsc").first())
        ).alias("slope"),
    )
    events = (
        pl.read_csv(folder / "events.csv")
        .join(clocks, on="proc")
        .with_columns(
            (
                pl.col("wall0")
                + ((pl.col("t_tsc").cast(pl.Int64) - pl.col("tsc0")) * pl.col("slope")).cast(
                    pl.Int64
                )
            ).alias("t_ns")
        )
        .drop("tsc0", "wall0", "slope")
        .sort("t_ns")
    )
    events = events.with_columns(
        pl.int_range(pl.len()).over("src_proc", "dst_proc", "op").alias("k")
    )
    sends = events.filter(pl.col("op") == SEND)
    receives = events.filter(pl.col("op") == RECV)
    matched = sends.join(receives, on=["src_proc", "dst_proc", "k"], suffix="_recv")
    matrix = sends.group_by("src_proc", "dst_proc").agg(
        pl.len().alias("messages"), pl.col("size_bytes").sum()
    )
    matrix.write_csv(folder / "polars-matrix.csv")
    events.write_ndjson(folder / "polars.ndjson")
    totals = {
        "events": events.height,
        "matched": matched.height,
        "bytes": int(matrix["size_bytes"].sum()),
    }
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
