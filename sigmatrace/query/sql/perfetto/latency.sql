include perfetto module sigmatrace.rdma;
with ranked as (
  select *,
    row_number() over (partition by layer, src, dst order by latency_ns) as k,
    count(*) over (partition by layer, src, dst) as n
  from sigmatrace_messages
  where $layer in ('', layer)
)
select
  layer, src, dst, count(*) as messages, min(latency_ns) as min_ns,
  min(iif(100 * k >= 50 * n, latency_ns, null)) as p50_ns,
  min(iif(100 * k >= 99 * n, latency_ns, null)) as p99_ns,
  max(latency_ns) as max_ns, avg(latency_ns) as mean_ns,
  null as backwards -- these have no arrow in a trace
from ranked
group by 1, 2, 3
order by layer, p50_ns desc, src, dst;
