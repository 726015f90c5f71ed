-- Which hosts held jobs back again and again, whatever the cause?
-- theme: Stragglers
-- try: --limit 5
-- chart: gpu_s_lost by host
-- Verdicts of warning or worse on a rank of the host. Hosts whose hardware is at fault are in `offenders`.
SELECT host, uniqExact(job, run) AS runs, uniqExact(gpu_uuid) AS gpus, count() AS windows, topK(1)(if(detail = '', toString(cause), concat(toString(cause), ', ', detail)))[1] AS mostly,
    argMax(job, lost_ns) AS worst_job, argMax(rank, lost_ns) AS worst_rank, round(sum(s.gpu_seconds_lost), 1) AS gpu_s_lost, max(window_end) AS last
FROM stragglers AS s
WHERE rank >= 0 AND severity >= 'warning' AND host != '' AND window_start >= {since:DateTime64(3, 'UTC')} AND window_start < {until:DateTime64(3, 'UTC')}
GROUP BY host
ORDER BY runs DESC, gpu_s_lost DESC, host
LIMIT {limit:UInt32}
