include perfetto module sigmatrace.rdma;
with ends as (
  select label, iif($level = 'node', host, label) as name from sigmatrace_processes
)
select
  layer,
  coalesce(s.name, src) as src,
  coalesce(d.name, dst) as dst,
  count(*) as operations,
  coalesce(sum(size_bytes), 0) as size_bytes,
  count(*) - count(size_bytes) as size_unknown,
  avg(size_bytes) as mean_bytes
from sigmatrace_traffic
left join ends s on s.label = src
left join ends d on d.label = dst
where $layer in ('', layer)
group by 1, 2, 3
order by layer, 5 desc, 2, 3;
