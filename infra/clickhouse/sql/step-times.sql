-- How long do steps take: median, tail, worst?
-- theme: Steps
-- try: --job demo
-- chart: p50_ms, p99_ms by rank
-- A step lasts from the end of the previous step's last collective on that GPU to the end of its own: the host runs ahead.
WITH quantilesExactInclusive(0.5, 0.95, 0.99)(gpu_duration_ns) AS lengths_ns
SELECT rank, count() AS steps, round(lengths_ns[1] / 1e6, 2) AS p50_ms, round(lengths_ns[2] / 1e6, 2) AS p95_ms, round(lengths_ns[3] / 1e6, 2) AS p99_ms,
    round(max(gpu_duration_ns) / 1e6, 2) AS max_ms, argMax(step, gpu_duration_ns) AS worst_step
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY rank
ORDER BY rank
