-- Two jobs: step times and budgets side by side.
-- theme: Comparing runs
-- try: --job demo --other mild
-- @other: the job to compare with
-- A step lasts from the end of the previous step's last collective on that GPU to the end of its own: the host runs ahead.
SELECT job, uniqExact(rank) AS ranks, count() AS steps, round(quantile(0.5)(gpu_duration_ns) / 1e6, 2) AS p50_ms, round(quantile(0.95)(gpu_duration_ns) / 1e6, 2) AS p95_ms,
    round(100 * sum(compute_ns) / sum(gpu_duration_ns), 1) AS compute_percent, round(100 * sum(comm_exposed_ns) / sum(gpu_duration_ns), 1) AS communication_percent,
    round(100 * sum(idle_ns) / sum(gpu_duration_ns), 1) AS idle_percent
FROM steps
WHERE job IN ({job:String}, {other:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY job
ORDER BY job = {job:String} DESC
