-- When did GPUs stand still although they are allocated?
-- theme: Steps
-- try: --job demo --group 10 --limit 14
-- chart: idle_percent over from_step
-- @group = 20: steps to take together
-- A run that restarted has the same step numbers again: a group is of one attempt, the first attempt first.
WITH (SELECT groupArray((run, attempt_start)) FROM attempts WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS starts, arrayCount(at -> at.1 = run AND at.2 <= start, starts) AS attempt
SELECT intDiv(step, {group:UInt32}) * {group:UInt32} AS from_step, round(100 * sum(idle_ns) / sum(gpu_duration_ns), 1) AS idle_percent,
    argMax(rank, idle_ns) AS most_idle_rank, round(max(idle_ns) / 1e6, 1) AS longest_idle_ms
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND NOT skipped
GROUP BY run, attempt, from_step
ORDER BY run, attempt, from_step
LIMIT {limit:UInt32}
