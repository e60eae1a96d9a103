include perfetto module sigmatrace.rdma;
with regions as (
  select * from sigmatrace_regions where instr(lower(name), lower($name)) > 0
)
select
  name, barrier,
  row_number() over (arrived order by arrival_ns, length(label), label) - 1 as position,
  label, arrival_ns, arrival_ns - min(arrival_ns) over (arrived) as late_ns
from regions
window arrived as (partition by name, barrier)
order by name, barrier, position;
