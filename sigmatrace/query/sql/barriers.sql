-- Who came first and last to each barrier, and how far apart.
-- Barriers are regions of the program whose name contains a word: the k-th region of a name of each
-- process is its arrival at the k-th barrier. missing: processes that have such regions, and did not
-- come to this one. Times are Unix time in ns.
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
), ordered as (
  select *,
    row_number() over (arrived order by arrival_ns, length(label), label) as k,
    count(*) over (arrived) as n
  from regions
  window arrived as (partition by name, barrier)
),
members as (select name, count(distinct label) as n from regions group by name)
select
  o.name, barrier, count(*) as members, max(m.n) - count(*) as missing,
  min(arrival_ns) as first_ns, max(arrival_ns) as last_ns,
  max(arrival_ns) - min(arrival_ns) as spread_ns,
  max(case when k = 1 then label end) as first,
  max(case when k = o.n then label end) as last
from ordered o
join members m on m.name = o.name
group by o.name, barrier
order by o.name, barrier;
