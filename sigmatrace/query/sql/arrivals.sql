-- In which order processes came to each barrier.
-- Barriers are regions of the program whose name contains a word: the k-th region of a name of each
-- process is its arrival at the k-th barrier. One row for each arrival; position from 0; arrival_ns:
-- Unix time; late_ns: after the first one.
-- looks at: the program's own regions whose name contains the word; preset=analysis finds others, too
-- name=barrier  the word
with regions as (
  select
    text as name, label,
    t_ns as arrival_ns,
    row_number() over (partition by m.proc, text order by t_ns) as barrier
  from marks m
  join names n on n.proc = m.proc and n.name = m.name
  join processes p on p.proc = m.proc
  where kind = 'begin' and contains(lower(text), lower($name))
)
select
  name, barrier,
  row_number() over (arrived order by arrival_ns, length(label), label) - 1 as position,
  label, arrival_ns, arrival_ns - min(arrival_ns) over (arrived) as late_ns
from regions
window arrived as (partition by name, barrier)
order by name, barrier, position;
