-- What did the late rank do in the deep window of its verdict that healthy ranks beside it did not?
-- theme: Stragglers
-- try: --job demo --seconds 2 --limit 8
-- @rank = -1: the rank that the verdict names; -1 = the one that became late last
-- @first_step = -1: first step of the verdict's window; -1 = the newest one that became late
-- @seconds = 120: so long after that window the rank's kernels are searched; s
-- @length = 10: so much is compared, from the first of them on; s
-- Values are ms of work in a second of a rank's records, and the mean clock. `idle`: neither a kernel nor a copy. `peers`: all others that were recorded then and that the verdict does not name; their mean.
WITH
    (
        SELECT argMax((run, rank, window_end, first_step, attempt_start), (window_end, lost_ns)) FROM stragglers
        WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank >= 0 AND changed AND severity >= 'warning'
            AND ({rank:Int32} < 0 OR rank = {rank:Int32}) AND ({first_step:Int64} < 0 OR first_step = {first_step:Int64})
    ) AS late,
    (
        SELECT groupArray(rank) FROM stragglers
        WHERE job = {job:String} AND run = late.1 AND first_step = late.4 AND attempt_start = late.5 AND rank != late.2 AND severity >= 'suspect'
    ) AS named,
    (
        SELECT min(start) FROM kernels
        WHERE job = {job:String} AND run = late.1 AND rank = late.2 AND start BETWEEN late.3 AND late.3 + toIntervalSecond({seconds:UInt32})
    ) AS low,
    low + toIntervalSecond({length:UInt32}) AS high,
    e AS (
        SELECT rank, name AS label, 1 AS is_kernel, start, toUInt64(duration_ns) AS ns FROM kernels
        WHERE job = {job:String} AND run = late.1 AND start BETWEEN low AND high AND NOT has(named, rank)
        UNION ALL
        SELECT rank, concat(direction, if(source = 'pageable' OR target = 'pageable', ', pageable', '')), 0, start, toUInt64(duration_ns) FROM memcpys
        WHERE job = {job:String} AND run = late.1 AND start BETWEEN low AND high AND NOT has(named, rank)
    ),
    spans AS (
        SELECT rank, greatest(dateDiff('nanosecond', min(start), max(addNanoseconds(start, ns))), 1) / 1e9 AS seconds, count() OVER () - 1 AS peers FROM e GROUP BY rank
    ),
    parts AS (
        SELECT rank, multiIf(NOT is_kernel, label, n.family = '', 'other', n.family) AS what, sum(g.ns) AS total_ns, sum(g.times) AS times
        FROM (SELECT rank, label, is_kernel, sum(ns) AS ns, count() AS times FROM e GROUP BY rank, label, is_kernel) AS g
        LEFT ANY JOIN kernel_names AS n ON n.name = g.label
        GROUP BY rank, what
        UNION ALL
        SELECT rank, 'idle', sum(gap_ns), countIf(gap_ns > 0) FROM (
            SELECT rank, if(before < low, 0, greatest(dateDiff('nanosecond', before, start), 0)) AS gap_ns
            FROM (SELECT rank, start, max(addNanoseconds(start, ns)) OVER (PARTITION BY rank ORDER BY start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM e)
        ) GROUP BY rank
    )
SELECT late.2 AS rank, what, unit, round(late_value, 2) AS of_rank, round(peer_value, 2) AS of_peers, round(late_value - peer_value, 2) AS more, round(late_times) AS times_per_s, round(peer_times) AS peers_times_per_s, peers
FROM (
    SELECT what, 'ms/s' AS unit, sumIf(total_ns / seconds, p.rank = late.2) / 1e6 AS late_value, sumIf(total_ns / seconds, p.rank != late.2) / 1e6 / greatest(any(s.peers), 1) AS peer_value,
        sumIf(times / seconds, p.rank = late.2) AS late_times, sumIf(times / seconds, p.rank != late.2) / greatest(any(s.peers), 1) AS peer_times, any(s.peers) AS peers
    FROM parts AS p
    INNER JOIN spans AS s ON s.rank = p.rank
    GROUP BY what
    UNION ALL
    SELECT 'SM clock', 'MHz', avgIf(mhz, d.rank = late.2), avgIf(mhz, d.rank != late.2), sumIf(samples, d.rank = late.2) / {length:UInt32}, sumIf(samples, d.rank != late.2) / {length:UInt32} / greatest(any(s.peers), 1), toInt64(any(s.peers))
    FROM (
        SELECT rank, avg(assumeNotNull(d.sm_clock)) AS mhz, count() AS samples FROM device_samples AS d
        WHERE job = {job:String} AND run = late.1 AND time BETWEEN low AND high AND sm_clock IS NOT NULL GROUP BY rank
    ) AS d
    INNER JOIN spans AS s ON s.rank = d.rank
    HAVING countIf(d.rank = late.2) > 0 AND countIf(d.rank != late.2) > 0
)
ORDER BY unit, abs(more) DESC, what
LIMIT {limit:UInt32}
