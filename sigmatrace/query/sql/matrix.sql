-- Who sent how much to whom.
-- One row for each layer, source and destination ('' unknown), the heaviest first: operations, bytes,
-- operations of unknown size, and the mean size of the others. Each message counts once, where it is
-- initiated. One layer sees again what the one above it sends: never add layers up.
-- looks at: operations that move bytes: send, put, get, atomic
-- level=rank|node  what an end is
-- layer=  one layer alone: ofi, ucp, uct, verbs, mlx5dv
with ends as (
  select proc, case $level when 'node' then host else label end as name from processes
)
select
  layer,
  coalesce(s.name, '') as src,
  coalesce(d.name, '') as dst,
  sum("count") as operations,
  sum(size_bytes) as size_bytes,
  sum(size_unknown) as size_unknown,
  sum(size_bytes) / nullif(sum("count") - sum(size_unknown), 0)::double as mean_bytes
from traffic
left join ends s on s.proc = src_proc
left join ends d on d.proc = dst_proc
where op in ('send', 'put', 'put_data', 'get', 'atomic', 'atomic_fetch') and nested = 0
  and $layer in ('', layer)
group by 1, 2, 3
order by layer, size_bytes desc, src, dst;
