-- How often did a job restart, when, at which steps, and what did each attempt lose?
-- theme: Jobs and ranks
-- try: --job demo
SELECT run, attempt, attempt_start AS started, a.first_step AS first_step, a.last_step AS last_step, s.windows AS windows, s.ranks AS ranks,
    round(s.lost, 2) AS gpu_seconds_lost, s.latest_rank AS latest_rank
FROM attempts AS a
LEFT JOIN (
    SELECT job, run, attempt_start, uniqExactIf(first_step, severity >= 'ok') AS windows, max(ranks_seen) AS ranks, sumIf(gpu_seconds_lost, rank >= 0 AND severity >= 'suspect') AS lost,
        argMaxIf(rank, lost_ns, rank >= 0 AND severity >= 'suspect') AS latest_rank
    FROM stragglers WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) GROUP BY job, run, attempt_start
) AS s ON s.job = a.job AND s.run = a.run AND s.attempt_start = a.attempt_start
WHERE a.job = {job:String} AND ({run:String} = '' OR a.run = {run:String})
ORDER BY run, attempt
LIMIT {limit:UInt32}
