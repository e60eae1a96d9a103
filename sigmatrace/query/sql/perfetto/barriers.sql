include perfetto module sigmatrace.rdma;
with regions as (
  select * from sigmatrace_regions where instr(lower(name), lower($name)) > 0
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
