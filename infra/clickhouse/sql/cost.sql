-- What did each run cost, and how much of that did GPUs stand still or wait?
-- theme: Cost
-- try: --price 3.5
-- chart: gpu_hours by job, run
-- Labels are those of `drumline run --label NAME=VALUE`.
-- @job = : only this job; empty = all of them
-- @price = 0: of a GPU hour, in your currency; without one money is NULL
-- @team = : only runs with this label team
-- @user = : only runs with this label user
-- @label = : only runs with this label, NAME=VALUE
SELECT j.job AS job, j.run AS run, l.labels['team'] AS team, l.labels['user'] AS user, j.ranks AS gpus, round(j.gpu_hours, 4) AS gpu_hours, round(j.gpu_hours * nullIf({price:Float64}, 0), 4) AS money,
    round(100 * s.idle, 1) AS idle_percent, round(100 * s.waits, 1) AS communication_percent, round(j.gpu_hours * nullIf({price:Float64}, 0) * (s.idle + s.waits), 4) AS money_not_computing
FROM (SELECT job, run, ranks, started, ranks * dateDiff('millisecond', started, ended) / 3.6e6 AS gpu_hours FROM jobs) AS j
LEFT JOIN (
    SELECT job, run, sum(idle_ns) / sum(gpu_duration_ns) AS idle, sum(comm_exposed_ns) / sum(gpu_duration_ns) AS waits
    FROM steps
    WHERE NOT skipped AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY job, run
) AS s ON s.job = j.job AND s.run = j.run
LEFT JOIN (SELECT job, run, any(labels) AS labels FROM processes GROUP BY job, run) AS l ON l.job = j.job AND l.run = j.run
WHERE ({job:String} = '' OR j.job = {job:String}) AND ({run:String} = '' OR j.run = {run:String})
    AND ({team:String} = '' OR team = {team:String}) AND ({user:String} = '' OR user = {user:String})
    AND ({label:String} = '' OR has(arrayMap((name, value) -> concat(name, '=', value), mapKeys(l.labels), mapValues(l.labels)), {label:String}))
ORDER BY j.started DESC
LIMIT {limit:UInt32}
