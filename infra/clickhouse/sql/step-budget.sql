-- Where does the time of a step go: compute, copies, communication that nothing covers, idle?
-- theme: Steps
-- try: --job demo
-- chart: stacked compute_percent, copies_percent, communication_percent, idle_percent by rank
SELECT rank, count() AS steps, round(avg(gpu_duration_ns) / 1e6, 2) AS step_ms, round(100 * sum(compute_ns) / sum(gpu_duration_ns), 1) AS compute_percent,
    round(100 * sum(copy_ns) / sum(gpu_duration_ns), 1) AS copies_percent, round(100 * sum(comm_exposed_ns) / sum(gpu_duration_ns), 1) AS communication_percent,
    round(100 * sum(idle_ns) / sum(gpu_duration_ns), 1) AS idle_percent
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND NOT skipped
GROUP BY rank
ORDER BY rank
