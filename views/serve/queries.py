"""Queries of the pages beside those of the report and of `drumline top`: each reads rollups, or a bounded time."""

from __future__ import annotations

from drumline.infra.clickhouse.main_cause import main_cause
from drumline.infra.clickhouse.occupancy import SHAPE, SHAPED, achieved, sm_of_job, with_occupancy

_RUNS = "SELECT arrayJoin(arrayZip({jobs:Array(String)}, {runs:Array(String)}))"
_LEVEL = "indexOf(['suspect', 'warning', 'critical'], s.state)"
_SCOPE = "job = {job:String} AND run = {run:String}"

# Of each run: what it lost, how many ranks are named, and the rank that cost most.
FLEET_COSTS = f"""
SELECT job, run, sum(r.lost) AS gpu_seconds, countIf(r.rank >= 0) AS named,
       argMax((r.rank, r.host, r.why.1, r.why.2), r.lost) AS costliest
FROM (
    SELECT job, run, rank, anyLast(s.host) AS host, sum(s.gpu_seconds_lost) AS lost,
           {main_cause("s.severity >= 'suspect'")} AS why
    FROM stragglers AS s WHERE (job, run) IN ({_RUNS}) AND s.severity >= 'suspect' GROUP BY job, run, rank
) AS r GROUP BY job, run
"""

# Of each run: the worst rank of the newest window of steps of its newest attempt.
FLEET_NOW = f"""
SELECT job, run, argMax((rank, s.host, s.state, s.cause, s.detail, s.lost_share), ({_LEVEL}, s.lost_ns)) AS now
FROM stragglers AS s WHERE (job, run, first_step, s.attempt_start) IN (
    SELECT job, run, newest.2, newest.1 FROM (
        SELECT job, run, max((attempt_start, first_step)) AS newest FROM stragglers
        WHERE (job, run) IN ({_RUNS}) AND severity >= 'ok' GROUP BY job, run
    )
) GROUP BY job, run
"""

# Labels of each run, from `drumline run --label NAME=VALUE`.
FLEET_LABELS = f"""
SELECT job, run, any(labels) AS labels FROM processes WHERE (job, run) IN ({_RUNS}) GROUP BY job, run
"""

# What ran on a host, the newest first, and what its ranks there cost.
HOST_JOBS = f"""
SELECT p.job AS job, p.run AS run, p.on_host AS ranks, p.newest AS newest_process, l.times AS late_windows,
       l.lost AS gpu_s_lost, l.why.1 AS mostly, l.why.2 AS detail
FROM (
    SELECT job, run, uniqExact(rank) AS on_host, toString(toDateTime(max(published), 'UTC')) AS newest FROM processes
    WHERE host = {{host:String}} GROUP BY job, run ORDER BY max(published) DESC LIMIT 100
) AS p LEFT JOIN (
    SELECT job, run, count() AS times, round(sum(s.gpu_seconds_lost), 1) AS lost,
           {main_cause("s.severity >= 'suspect'")} AS why
    FROM stragglers AS s WHERE s.host = {{host:String}} AND s.rank >= 0 AND s.severity >= 'suspect' GROUP BY job, run
) AS l ON l.job = p.job AND l.run = p.run ORDER BY p.newest DESC, job, run
"""

# Jobs that stand still, by run.
FLEET_HANGS = """
SELECT h.job AS job, h.run AS run, h.state AS state, h.reason AS reason, h.note AS note,
       dateDiff('second', h.start, now64(3)) AS seconds
FROM hangs_now AS h WHERE h.rank = -1 AND h.state IN ('standing', 'hung')
"""

# The identity of a rank: its newest process.
PROCESS = f"""
SELECT host, gpu_uuid, gpu_index, gpu_model, pid, k8s_namespace, k8s_pod, k8s_container, slurm_job, policy, labels,
       versions
FROM processes WHERE {_SCOPE} AND rank = {{rank:Int32}} ORDER BY published DESC LIMIT 1
"""

#: Ranks that stand for all of a larger run with more steps than are read one by one: a rank, and all of some hosts.
MOST_RANKS = 512
SOME_RANKS = f"""
SELECT rank FROM processes WHERE {_SCOPE}
GROUP BY rank ORDER BY rank != {{rank:Int32}}, cityHash64(any(host)), rank LIMIT {MOST_RANKS}
"""
_OF_SOME = "AND rank IN {ranks:Array(Int32)}"

_TIME = "start <= {until:DateTime64(9, 'UTC')} AND start >= {since:DateTime64(9, 'UTC')}"


def _budget(of_ranks: str = "") -> str:
    """Return the query of the mean parts of a step, of the rank and of the middle of its peers; ms."""
    return f"""
SELECT this, quantileExactInclusive(0.5)(mean_step) AS step_ms,
       quantileExactInclusive(0.5)(mean_compute) AS compute_ms, quantileExactInclusive(0.5)(mean_copy) AS copy_ms,
       quantileExactInclusive(0.5)(mean_communication) AS communication_ms,
       quantileExactInclusive(0.5)(mean_idle) AS idle_ms, count() AS ranks
FROM (
    SELECT rank = {{rank:Int32}} AS this, rank, avg(gpu_duration_ns) / 1e6 AS mean_step,
           avg(compute_ns) / 1e6 AS mean_compute, avg(copy_ns) / 1e6 AS mean_copy,
           avg(comm_exposed_ns) / 1e6 AS mean_communication, avg(idle_ns) / 1e6 AS mean_idle
    FROM steps WHERE {_SCOPE} AND {_TIME} AND step BETWEEN {{first:Int64}} AND {{last:Int64}} AND skipped = 0
      AND gpu_duration_ns > 0 {of_ranks} GROUP BY rank
) GROUP BY this ORDER BY this DESC
"""


BUDGET, BUDGET_OF_SOME = _budget(), _budget(_OF_SOME)

# Kernels whose time differs most between the rank and the mean of its peers, in whole minutes.
_MINUTES = f"""{_SCOPE} AND minute BETWEEN toStartOfMinute({{since:DateTime64(9, 'UTC')}})
      AND toStartOfMinute({{until:DateTime64(9, 'UTC')}})"""
_KERNELS = f"""
SELECT name, sumIf(r.gpu_ns, rank = {{rank:Int32}}) / 1e9 AS gpu_s,
       sumIf(r.launches, rank = {{rank:Int32}}) AS launches,
       sumIf(r.gpu_ns, rank != {{rank:Int32}}) / 1e9 / greatest(1, {{peers:UInt32}}) AS peers_gpu_s,
       sumIf(r.launches, rank != {{rank:Int32}}) / greatest(1, {{peers:UInt32}}) AS peers_launches, {SHAPE}
FROM kernels_per_minute AS r WHERE {_MINUTES} GROUP BY name ORDER BY abs(gpu_s - peers_gpu_s) DESC LIMIT 8
"""
KERNELS = f"""
SELECT k.name AS name, n.short AS short, n.family AS family, k.gpu_s AS gpu_s, k.launches AS launches,
       k.peers_gpu_s AS peers_gpu_s, k.peers_launches AS peers_launches, k.occupancy AS occupancy,
       k.limited_by AS limited_by, {achieved("sm_occupancy", f"{_MINUTES} AND rank = {{rank:Int32}}")} AS achieved
FROM ({with_occupancy(_KERNELS, sm_of_job(_SCOPE), *SHAPED)}) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name ORDER BY abs(gpu_s - peers_gpu_s) DESC
"""


def _device_times(of_ranks: str = "") -> str:
    """Return the query of the GPU of the rank, and of the mean of its peers', over time."""
    return f"""
WITH greatest({{length_ns:Int64}} / {{bins:Int64}}, 1) AS width
SELECT intDiv(dateDiff('nanosecond', {{since:DateTime64(9, 'UTC')}}, time), toInt64(width)) * width / 1e9 AS second,
       if(d.rank = {{rank:Int32}}, 0, 1) AS series, avg(util_gpu) AS util, avg(power_mw) / 1e3 AS power_w,
       avg(d.sm_clock) AS clock_mhz, avg(d.temperature) AS celsius
FROM device_samples AS d
WHERE {_SCOPE} AND rank >= 0 AND time BETWEEN {{since:DateTime64(9, 'UTC')}} AND {{until:DateTime64(9, 'UTC')}}
      {of_ranks}
GROUP BY second, series ORDER BY second, series
"""


DEVICE_TIMES = _device_times()
# The table is sorted by host, not by rank.
_OF_HOSTS = f"host IN (SELECT host FROM devices_per_minute WHERE {_SCOPE} {_OF_SOME})"
DEVICE_TIMES_OF_SOME = _device_times(f"{_OF_SOME} AND {_OF_HOSTS}")


def _host(of_ranks: str = "") -> str:
    """Return the query of the process of the rank beside the mean of its peers': shares of time."""
    return f"""
SELECT this, sum(main_cpu_ns) / sum(interval_ns) AS main_cpu, sum(main_wait_ns) / sum(interval_ns) AS main_wait,
       sum(main_blocked_ns) / sum(interval_ns) AS blocked, sum(throttled_ns) / sum(interval_ns) AS throttled,
       sum(major_faults) * 1e9 / sum(interval_ns) AS faults_per_s,
       sum(host_cpu_pressure_ns) / sum(interval_ns) AS cpu_pressure,
       sum(host_io_pressure_ns) / sum(interval_ns) AS io_pressure,
       sum(host_memory_pressure_ns) / sum(interval_ns) AS memory_pressure, max(rss_bytes) / 1e9 AS rss_gb
FROM (SELECT *, rank = {{rank:Int32}} AS this FROM host_samples
      WHERE {_SCOPE} AND time BETWEEN {{since:DateTime64(9, 'UTC')}} AND {{until:DateTime64(9, 'UTC')}} {of_ranks})
GROUP BY this ORDER BY this DESC
"""


HOST, HOST_OF_SOME = _host(), _host(_OF_SOME)

# The steps of ranks under one number; a step of a rank begins with the end of the last collective before it.
STEP = f"""
SELECT rank, host, source, toString(gpu_start) AS begin, gpu_duration_ns / 1e6 AS step_ms,
       compute_ns / 1e6 AS compute_ms, copy_ns / 1e6 AS copy_ms, comm_ns / 1e6 AS communication_ms,
       idle_ns / 1e6 AS idle_ms
FROM steps WHERE {_SCOPE} AND step = {{step:Int64}} AND {_TIME} AND gpu_duration_ns > 0 ORDER BY rank
"""

# Lateness of the ranks in a step, of the attempt that ran then; the largest number of it first.
STEP_LATENESS = f"""
SELECT rank, sum(lateness_ns) / 1e6 AS late_ms, sum(wait_ns) / 1e6 AS wait_ms FROM lateness AS l
WHERE {_SCOPE} AND step = {{step:Int64}} AND (communicator, l.attempt_start) IN (
    SELECT communicator, max(attempt_start) FROM lateness WHERE {_SCOPE} AND step = {{step:Int64}}
      AND attempt_start <= {{until:DateTime64(9, 'UTC')}} GROUP BY communicator
) GROUP BY rank ORDER BY late_ms DESC
"""

# The step and rank of some steps and ranks with most lateness, of the attempt that ran last; without lateness the first
# step that is known.
_OF_CELL = f"""{_SCOPE} AND step BETWEEN {{first:Int64}} AND {{last:Int64}}
    AND rank BETWEEN {{first_rank:Int32}} AND {{last_rank:Int32}}"""
LATEST_STEP = f"""
SELECT l.step AS step, l.rank AS rank FROM lateness AS l
WHERE {_OF_CELL} AND l.attempt_start = (SELECT max(attempt_start) FROM lateness WHERE {_OF_CELL})
GROUP BY step, rank HAVING sum(l.lateness_ns) > 0 ORDER BY sum(l.lateness_ns) DESC, step, rank LIMIT 1
"""
FIRST_STEP = f"SELECT step, rank FROM steps WHERE {_OF_CELL} AND gpu_duration_ns > 0 ORDER BY step, rank LIMIT 1"

# What ran in each of `bins` parts of the step, by rank: ns of each kind.
_BINS = """arrayJoin(range(
    toUInt32(greatest(0, intDiv((toInt64(e.begin_ns) - b.begin_ns) * {bins:Int64}, b.length_ns))),
    toUInt32(least({bins:Int64},
             1 + intDiv((toInt64(e.begin_ns) + e.ns - b.begin_ns) * {bins:Int64}, b.length_ns)))))"""
STEP_WORK = f"""
WITH arrayJoin(arrayZip({{ranks:Array(Int32)}}, {{begins:Array(Int64)}})) AS pair
SELECT rank, bin, kind, sum(part) AS ns FROM (
    SELECT rank, kind, {_BINS} AS bin,
           greatest(0, least(e.begin_ns + e.ns, b.begin_ns + intDiv((bin + 1) * b.length_ns, {{bins:Int64}}))
                       - greatest(e.begin_ns, b.begin_ns + intDiv(bin * b.length_ns, {{bins:Int64}}))) AS part
    FROM (
        SELECT rank, multiIf(n.family = 'nccl', 'communication', n.family IN ('gemm', 'attention', 'convolution'),
                             'matrix', 'other') AS kind,
               toInt64(toUnixTimestamp64Nano(start)) AS begin_ns, toInt64(duration_ns) AS ns
        FROM kernels AS k LEFT ANY JOIN kernel_names AS n ON n.name = k.name
        WHERE {_SCOPE} AND rank IN ({{ranks:Array(Int32)}}) AND {_TIME}
        UNION ALL
        SELECT rank, 'copy', toInt64(toUnixTimestamp64Nano(start)), toInt64(duration_ns) FROM memcpys
        WHERE {_SCOPE} AND rank IN ({{ranks:Array(Int32)}}) AND {_TIME} AND kind != 64
    ) AS e INNER JOIN (SELECT pair.1 AS rank, pair.2 AS begin_ns, {{length_ns:Int64}} AS length_ns) AS b USING (rank)
    WHERE e.begin_ns < b.begin_ns + b.length_ns AND e.begin_ns + e.ns > b.begin_ns
) GROUP BY rank, bin, kind ORDER BY rank, bin, kind
"""

# Collectives of the step, on the ranks.
STEP_COLLECTIVES = f"""
SELECT rank, communicator, operation, bytes, ordinal, toInt64(toUnixTimestamp64Nano(start)) AS begin_ns,
       duration_ns AS ns, min(duration_ns) OVER (PARTITION BY communicator, ordinal) AS shortest_ns
FROM collectives WHERE {_SCOPE} AND step = {{step:Int64}} AND rank IN ({{ranks:Array(Int32)}}) AND {_TIME}
ORDER BY rank, ns DESC LIMIT 4000
"""

# Since when the job waits for this rank.
RANK_HANGS = f"""
SELECT h.state AS state, h.reason AS reason, h.note AS note, h.operation AS operation, h.step AS step,
       toString(h.start) AS started, dateDiff('second', h.start, h.time) AS seconds
FROM hangs_now AS h WHERE {_SCOPE} AND h.rank = {{rank:Int32}} AND h.state IN ('standing', 'hung')
"""
