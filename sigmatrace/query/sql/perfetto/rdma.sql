-- PerfettoSQL module sigmatrace.rdma: operations and messages of a SigmaTrace trace.
--
--   include perfetto module sigmatrace.rdma;
--
-- Its views see what the trace shows as slices: a window, a choice, or a budget leaves some out.

-- Processes: label as in the tables of the pipeline ("rank 3", "pid 812"), and host.
create perfetto table sigmatrace_processes as
with named as (
  select
    upid,
    regexp_extract(name, '\(([^(),]*)[^(]*\)$') as host,
    case
      when name glob 'rank [0-9]*' then substr(name, 1, instr(name, ' (') - 1)
      else 'pid ' || coalesce(regexp_extract(name, ', pid ([0-9]+)\)$'), pid)
    end as label
  from process
  where name is not null
)
select
  upid, host,
  label || iif(count(*) over (partition by label) > 1, ' @' || host, '') as label
from named;

-- Operations, one row for each call or request of the program, as on the tracks of threads. kind:
-- 'out' (sends, puts, atomics), 'get', 'recv', 'other'. peer: label of the other end, '' unknown.
-- layer: '' where the call is not known. size_bytes: null where the API does not tell. nested: made
-- by another one of the same layer.
create perfetto table sigmatrace_operations as
with calls as (
  select
    s.id, s.ts, s.name as call, p.label,
    -- Told where there are queue pairs, else by the call; an unknown call is named by it.
    coalesce(
      extract_arg(s.arg_set_id, 'debug.op'),
      case when s.arg_set_id is not null and s.name in (
        'send', 'recv', 'put', 'put_data', 'get', 'atomic', 'atomic_fetch'
      ) then s.name end
    ) as op,
    coalesce(extract_arg(s.arg_set_id, 'debug.peer'), '') as peer,
    extract_arg(s.arg_set_id, 'debug.size_bytes') as size_bytes,
    extract_arg(s.arg_set_id, 'debug.nested') is not null as nested
  from slice s
  join thread_track t on t.id = s.track_id
  join thread using (utid)
  join sigmatrace_processes p using (upid)
  where coalesce(t.name, '') not in ('completions', 'regions')
)
select
  id, ts, label, call, peer, size_bytes, nested,
  case
    when call glob 'fi_*' then 'ofi'
    when call glob 'ucp_*' then 'ucp'
    when call glob 'uct_*' then 'uct'
    when call glob 'ibv_*' then 'verbs'
    when call glob 'gpu_*' then 'mlx5dv'
    else ''
  end as layer,
  case
    when op in ('send', 'put', 'put_data', 'atomic', 'atomic_fetch') then 'out'
    when op in ('get', 'recv') then op
    when op is not null then 'other'
    when call glob '*flush*' or call glob '*cancel*' or call glob '*probe*' then 'other'
    when call glob '*recv*' or call glob 'fi_cq_*' or call glob '*am_handler*' then 'recv'
    when call glob '*worker_progress*' then 'recv'
    when call glob 'fi_read*' or call glob 'ucp_get*' or call glob 'uct_ep_get*' then 'get'
    else 'out'
  end as kind
from calls
where op is not null or call glob 'fi_*' or call glob 'ucp_*' or call glob 'uct_*';

create perfetto index sigmatrace_operations_by_id on sigmatrace_operations(id);

-- Traffic that operations initiate, in the direction in which its bytes go: a get from the end
-- that is read. src, dst: labels, '' unknown. size_bytes: null where the API does not tell.
create perfetto view sigmatrace_traffic as
select
  layer,
  iif(kind = 'get', peer, label) as src,
  iif(kind = 'get', label, peer) as dst,
  size_bytes
from sigmatrace_operations
where kind in ('out', 'get') and not nested;

-- Messages that have an arrow: from the send to the receive. There is none where clocks say that
-- it was received before it was sent.
create perfetto view sigmatrace_messages as
select
  s.layer, s.label as src, r.label as dst, s.size_bytes,
  s.ts as send_ts, r.ts as receive_ts, r.ts - s.ts as latency_ns
from flow
join sigmatrace_operations s on s.id = slice_out
join sigmatrace_operations r on r.id = slice_in
where s.kind = 'out' and r.kind = 'recv';

-- Regions of the program. barrier: the k-th region of a name of each process is its arrival at the
-- k-th barrier, if it is one. arrival_ns: Unix time of its begin; where a window cut that off, the
-- region is not here, and neither are regions of no length.
create perfetto view sigmatrace_regions as
select
  s.name, p.label, to_realtime(s.ts) as arrival_ns,
  row_number() over (partition by p.upid, s.name order by s.ts) as barrier
from slice s
join thread_track t on t.id = s.track_id
join thread using (utid)
join sigmatrace_processes p using (upid)
left join sigmatrace_operations o on o.id = s.id
where o.id is null and (
  (s.dur > 0 and s.arg_set_id is null)
  or extract_arg(s.arg_set_id, 'debug.region') in ('never ended', 'no end in the window')
);
