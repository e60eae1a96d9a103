"""Questions to the trace_processor about tracks of queue pairs."""

from __future__ import annotations

TRACKS = """
with recursive up(id, path) as (
  select id, name from track where parent_id is null
  union all select t.id, ifnull(u.path || '/', '') || t.name
  from track t join up u on t.parent_id = u.id)
"""
SLICES = f"""
{TRACKS}
select s.ts, s.dur, s.depth, s.name, path, p.name as process, s.arg_set_id, s.track_id
from slice s join up on up.id = s.track_id
left join process_track k on k.id = s.track_id left join process p using (upid)
order by s.ts, s.dur desc, s.id
"""


def depths(tp):
    """Values of the counters ``outstanding`` by (process, queue pair)."""
    rows = tp.query(
        "select c.ts, c.value, q.name as qp, p.name as process, k.unit from counter c"
        " join track t on c.track_id = t.id join track q on q.id = t.parent_id"
        " join process_counter_track k on k.id = t.id"
        " join process p using (upid) where t.name = 'outstanding' order by c.ts"
    )
    assert {row["unit"] for row in rows} <= {"requests"}
    found = {}
    for row in rows:
        found.setdefault((row["process"], row["qp"]), []).append((row["ts"], row["value"]))
    return found
