"""The same work in DuckDB: clocks, matching, matrix, export. FOLDER has events.csv, clocks.csv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb

WORK = """
create table clocks as select
    proc,
    min(tsc) as tsc0,
    arg_min(wall_ns, tsc) as wall0,
    (max(wall_ns) - min(wall_ns)) / (max(tsc) - min(tsc)) as slope
from read_csv('{folder}/clocks.csv') group by proc;

create table events as select
    *, row_number() over (partition by src_proc, dst_proc, op order by t_ns) as k
from (
    select
        proc, op, src_proc, dst_proc, size_bytes,
        wall0 + ((t_tsc::bigint - tsc0) * slope)::bigint as t_ns
    from read_csv('{folder}/events.csv') join clocks using (proc)
);

create table matched as select s.*, r.t_ns as received_ns
from (from events where op = 1) s
join (from events where op = 2) r using (src_proc, dst_proc, k);

create table matrix as select src_proc, dst_proc, count(*) as messages, sum(size_bytes) as bytes
from events where op = 1 group by all;

copy matrix to '{folder}/duckdb-matrix.csv';
copy (from events order by t_ns) to '{folder}/duckdb.ndjson' (format json);
"""


def main() -> None:
    folder = Path(sys.argv[1])
    base = duckdb.connect()
    base.execute(WORK.format(folder=folder))
    counts = {"events": "count(*) from events", "matched": "count(*) from matched"}
    counts["bytes"] = "sum(bytes)::bigint from matrix"
    row = base.execute(f"select {', '.join(f'(select {of})' for of in counts.values())}").fetchone()
    print(json.dumps(dict(zip(counts, row or (), strict=True))))


if __name__ == "__main__":
    main()
