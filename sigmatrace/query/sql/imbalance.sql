-- How unevenly traffic is spread over ranks and nodes.
-- One row for each level and layer. Members are those that sent or received anything; what one
-- sends to itself is left out. egress_ratio: what the member that sends most sends, divided by what
-- the one that sends least does (1 even, inf where only the least is 0); ingress_ratio likewise;
-- pair_ratio: the heaviest pair, divided by the mean of all pairs that have traffic.
-- looks at: operations that move bytes: send, put, get, atomic, between members
-- layer=  one layer alone: ofi, ucp, uct, verbs, mlx5dv
with ends as (
  select 'rank' as level, proc, label as name from processes
  union all
  select 'node', proc, host from processes
),
levels as (select 'rank' as level union all select 'node'),
pairs as (
  select levels.level, layer, s.name as src, d.name as dst, sum(size_bytes) as size_bytes
  from traffic
  cross join levels
  left join ends s on s.proc = src_proc and s.level = levels.level
  left join ends d on d.proc = dst_proc and d.level = levels.level
  where op in ('send', 'put', 'put_data', 'get', 'atomic', 'atomic_fetch') and nested = 0
    and $layer in ('', layer)
  group by 1, 2, 3, 4
),
sides as (
  select level, layer, src as name, case when dst = src then 0 else size_bytes end as egress,
    0 as ingress
  from pairs where src is not null
  union all
  select level, layer, dst, 0, case when dst = src then 0 else size_bytes end
  from pairs where dst is not null
),
members as (
  select level, layer, name, sum(egress) as egress, sum(ingress) as ingress
  from sides group by level, layer, name
),
ranked as (
  select *,
    row_number() over (alike order by egress desc, length(name), name) as egress_most,
    row_number() over (alike order by egress, length(name), name) as egress_least,
    row_number() over (alike order by ingress desc, length(name), name) as ingress_most,
    row_number() over (alike order by ingress, length(name), name) as ingress_least
  from members
  window alike as (partition by level, layer)
),
extremes as (
  select level, layer, count(*) as members,
    max(case when egress_most = 1 then name end) as egress_max,
    max(egress) as egress_max_bytes,
    max(case when egress_least = 1 then name end) as egress_min,
    min(egress) as egress_min_bytes,
    max(case when ingress_most = 1 then name end) as ingress_max,
    max(ingress) as ingress_max_bytes,
    max(case when ingress_least = 1 then name end) as ingress_min,
    min(ingress) as ingress_min_bytes
  from ranked group by level, layer
),
heavy as (
  select level, layer, src, dst, size_bytes,
    avg(size_bytes) over (partition by level, layer) as mean_bytes,
    row_number() over (
      partition by level, layer order by size_bytes desc, length(src), src, length(dst), dst
    ) as place
  from pairs where src <> dst and size_bytes > 0
)
select
  e.level, e.layer, members, egress_max, egress_max_bytes, egress_min, egress_min_bytes,
  case
    when egress_max_bytes = egress_min_bytes then 1e0
    when egress_min_bytes = 0 then cast('inf' as double)
    else egress_max_bytes * 1e0 / egress_min_bytes
  end as egress_ratio,
  ingress_max, ingress_max_bytes, ingress_min, ingress_min_bytes,
  case
    when ingress_max_bytes = ingress_min_bytes then 1e0
    when ingress_min_bytes = 0 then cast('inf' as double)
    else ingress_max_bytes * 1e0 / ingress_min_bytes
  end as ingress_ratio,
  src as pair_src, dst as pair_dst, size_bytes as pair_max_bytes, mean_bytes as pair_mean_bytes,
  size_bytes / mean_bytes as pair_ratio
from extremes e
left join heavy h on h.level = e.level and h.layer = e.layer and place = 1
order by e.layer, e.level desc;
