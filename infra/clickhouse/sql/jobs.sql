-- Which runs are there, how long did they take, and on how much of a cluster?
-- theme: Jobs and ranks
-- @job = : only this job; empty = all of them
SELECT job, run, started, round(dateDiff('millisecond', started, ended) / 1e3, 1) AS seconds, ranks, hosts, kernels, collectives, steps,
    dropped_rows
FROM jobs
WHERE ({job:String} = '' OR job = {job:String}) AND ({run:String} = '' OR run = {run:String})
ORDER BY started DESC
LIMIT {limit:UInt32}
