-- Two jobs, or runs of one job: step times and budgets side by side.
-- theme: Comparing runs
-- try: --job demo --other mild
-- chart: stacked compute_percent, communication_percent, idle_percent by job, run
-- @other = : the job to compare with; empty = the same job
-- @other_run = : one run of that job; empty = all of them
-- One row for each run. With --job X alone: the newest run of X and the one before; --all-runs shows all. A step lasts from the end of the previous step's last
-- collective on that GPU to the end of its own last collective.
WITH quantilesExactInclusive(0.5, 0.95)(gpu_duration_ns) AS lengths_ns
SELECT job, run, uniqExact(rank) AS ranks, count() AS steps, round(lengths_ns[1] / 1e6, 2) AS p50_ms, round(lengths_ns[2] / 1e6, 2) AS p95_ms,
    round(100 * sum(compute_ns) / sum(gpu_duration_ns), 1) AS compute_percent, round(100 * sum(comm_exposed_ns) / sum(gpu_duration_ns), 1) AS communication_percent,
    round(100 * sum(idle_ns) / sum(gpu_duration_ns), 1) AS idle_percent
FROM steps
WHERE ((job = {job:String} AND ({run:String} = '' OR run = {run:String}))
        OR (job = if({other:String} = '', {job:String}, {other:String}) AND ({other_run:String} = '' OR run = {other_run:String})))
    AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY job, run
ORDER BY job = {job:String} AND ({run:String} = '' OR run = {run:String}) DESC, job, run
