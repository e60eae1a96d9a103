-- How long messages took, from the send to the receive, by pair of processes.
-- One row for each layer, source and destination, the slowest median first. Percentiles are exact:
-- the least latency that so many of the messages do not exceed. Messages that clocks say were
-- received before they were sent are in `backwards` alone.
-- looks at: messages of which the send and the receive were seen; puts and gets have no receive
-- layer=  one layer alone: ofi, ucp, uct, verbs, mlx5dv
with messages as (
  select
    flow, layer,
    min(case when op <> 'recv' then src_proc end) as src_proc,
    min(case when op <> 'recv' then dst_proc end) as dst_proc,
    min(case when op = 'recv' then t_ns end) - min(case when op <> 'recv' then t_ns end)
      as latency_ns
  from ops
  where flow <> 0 and op in ('send', 'put_data', 'recv') and $layer in ('', layer)
  group by flow, layer
),
ranked as (
  select *,
    case when latency_ns >= 0 then row_number() over (
      partition by layer, src_proc, dst_proc, latency_ns >= 0 order by latency_ns
    ) end as k,
    count(case when latency_ns >= 0 then 1 end) over (
      partition by layer, src_proc, dst_proc
    ) as n
  from messages where latency_ns is not null
)
select
  layer, label(src_proc) as src, label(dst_proc) as dst,
  count(k) as messages,
  min(case when k is not null then latency_ns end) as min_ns,
  min(case when 100 * k >= 50 * n then latency_ns end) as p50_ns,
  min(case when 100 * k >= 99 * n then latency_ns end) as p99_ns,
  max(case when k is not null then latency_ns end) as max_ns,
  avg(case when k is not null then latency_ns end) as mean_ns,
  count(*) - count(k) as backwards
from ranked
group by layer, src_proc, dst_proc
order by layer, p50_ns desc nulls last, src, dst;
