-- What did the late rank do in the deep window of its verdict that the healthy rank beside it did not?
-- theme: Stragglers
-- try: --job demo --seconds 2 --limit 8
-- @seconds = 120: so long after the verdict's window of steps it is searched; s
-- Of the rank that became late last. ms_per_s: GPU time in a second of the rank's records; peers: the mean of all others that were recorded then.
WITH
    (SELECT argMax((run, rank, window_end), (window_end, lost_ns)) FROM stragglers WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank >= 0 AND changed AND severity >= 'warning') AS late,
    late.3 AS low,
    late.3 + toIntervalSecond({seconds:UInt32}) AS high,
    e AS (
        SELECT rank, if(n.family = '', 'other', n.family) AS family, start, toUInt64(duration_ns) AS ns FROM kernels AS k
        LEFT ANY JOIN kernel_names AS n ON n.name = k.name
        WHERE job = {job:String} AND run = late.1 AND start BETWEEN low AND high
        UNION ALL
        SELECT rank, concat(direction, if(source = 'pageable' OR target = 'pageable', ', pageable', '')), start, toUInt64(duration_ns) FROM memcpys
        WHERE job = {job:String} AND run = late.1 AND start BETWEEN low AND high
    )
SELECT late.2 AS rank, e.family AS family, round(sumIf(ns / seconds, e.rank = late.2) / 1e6, 2) AS late_ms_per_s,
    round(sumIf(ns / seconds, e.rank != late.2) / 1e6 / greatest(any(ranks) - 1, 1), 2) AS peers_ms_per_s, round(late_ms_per_s - peers_ms_per_s, 2) AS more,
    round(sumIf(1 / seconds, e.rank = late.2)) AS late_per_s, round(sumIf(1 / seconds, e.rank != late.2) / greatest(any(ranks) - 1, 1)) AS peers_per_s
FROM e
INNER JOIN (
    SELECT rank, greatest(dateDiff('millisecond', min(start), max(start)), 1) / 1e3 AS seconds, count() OVER () AS ranks FROM e GROUP BY rank
) AS s ON s.rank = e.rank
GROUP BY family
ORDER BY abs(more) DESC, family
LIMIT {limit:UInt32}
