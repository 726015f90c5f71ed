-- What did each rank cost the others, by cause?
-- theme: Stragglers
-- try: --job demo
-- chart: gpu_seconds_lost by rank, cause
-- Money needs DRUMLINE_STREAM__PRICE_PER_GPU_HOUR when the verdict is made; else it is NULL.
SELECT rank, anyLast(s.host) AS host, cause, detail, count() AS windows, round(sum(lost_ns) / 1e9, 2) AS job_lost_s, round(sum(s.gpu_seconds_lost), 2) AS gpu_seconds_lost,
    nullIf(round(sum(s.money_lost), 4), 0) AS money_lost
FROM stragglers AS s
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND window_start >= {since:DateTime64(3, 'UTC')} AND window_start < {until:DateTime64(3, 'UTC')} AND rank >= 0 AND severity >= 'suspect'
GROUP BY rank, cause, detail
ORDER BY job_lost_s DESC, rank
LIMIT {limit:UInt32}
