-- Which runs are there, how long did they take, and on how much of a cluster?
-- theme: Jobs and ranks
SELECT job, run, started, round(dateDiff('millisecond', started, ended) / 1e3, 1) AS seconds, ranks, hosts, kernels, collectives, steps,
    dropped_rows
FROM jobs
ORDER BY started DESC
LIMIT {limit:UInt32}
