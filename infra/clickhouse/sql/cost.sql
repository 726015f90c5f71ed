-- What did each run cost, and how much of that did GPUs stand still or wait?
-- theme: Cost
-- try: --price 3.5
-- @job = : only this job; empty = all of them
-- @price = 0: of a GPU hour, in your currency
SELECT j.job AS job, j.run AS run, j.ranks AS gpus, round(j.gpu_hours, 4) AS gpu_hours, round(j.gpu_hours * {price:Float64}, 4) AS money,
    round(100 * s.idle, 1) AS idle_percent, round(100 * s.waits, 1) AS communication_percent, round(j.gpu_hours * {price:Float64} * (s.idle + s.waits), 4) AS money_not_computing
FROM (SELECT job, run, ranks, started, ranks * dateDiff('millisecond', started, ended) / 3.6e6 AS gpu_hours FROM jobs) AS j
LEFT JOIN (
    SELECT job, run, sum(idle_ns) / sum(gpu_duration_ns) AS idle, sum(comm_exposed_ns) / sum(gpu_duration_ns) AS waits
    FROM steps
    WHERE NOT skipped AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY job, run
) AS s ON s.job = j.job AND s.run = j.run
WHERE ({job:String} = '' OR j.job = {job:String}) AND ({run:String} = '' OR j.run = {run:String})
ORDER BY j.started DESC
LIMIT {limit:UInt32}
