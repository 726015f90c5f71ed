-- Eager, compiled, CUDA graph: how many launches does a step need, how large are they, how busy is the GPU?
-- theme: Launches
-- try: --job fusion --group 150
-- chart: launches_per_step over from_step
-- The recording runs the same forward pass 150 times eager, 150 times compiled and 150 times as a CUDA graph.
-- A group lasts from the first host start of its steps to that of the next group's; the last one ends with its last
-- kernel. `step_ms` is this time, divided by the number of steps; a gap before the next group counts. The host runs ahead
-- of the GPU, so take groups that are long against that. Busy counts no NCCL kernels; concurrent kernels all count.
-- A run that restarted has the same step numbers again: a group is of one attempt, the first attempt first.
-- @group = 20: steps to take together
-- @rank = 0: of this rank; the ranks of a job launch much the same
WITH (SELECT groupArray((run, attempt_start)) FROM attempts WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS starts, firsts AS (
    SELECT run, arrayCount(at -> at.1 = run AND at.2 <= start, starts) AS attempt, rank, intDiv(step, {group:UInt32}) * {group:UInt32} AS from_step, max(step) AS to_step, count() AS steps, min(start) AS begin
    FROM steps
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank = {rank:Int32} AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY run, attempt, rank, from_step
), groups AS (
    SELECT *, leadInFrame(begin, 1, toDateTime64({until:DateTime64(3, 'UTC')}, 9, 'UTC'))
            OVER (PARTITION BY run, rank ORDER BY begin ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next,
        count() OVER (PARTITION BY run, rank ORDER BY begin ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) = 1 AS is_last
    FROM firsts
    ORDER BY attempt, from_step LIMIT {limit:UInt32} BY run, rank
)
SELECT from_step, max(to_step) AS to_step, round(sum(launches) / sum(steps)) AS launches_per_step, round(sum(blocks) / sum(launches)) AS blocks_per_launch,
    round(sum(span_ns) / sum(steps) / 1e6, 2) AS step_ms, round(100 * sum(work_ns) / sum(span_ns), 1) AS busy_percent
FROM (
    SELECT g.run AS run, g.attempt AS attempt, g.rank, g.from_step AS from_step, any(g.to_step) AS to_step, any(g.steps) AS steps, count() AS launches,
        sum(k.blocks) AS blocks, sum(k.work_ns) AS work_ns,
        dateDiff('nanosecond', any(g.begin), if(any(g.is_last), max(k.end), any(g.next))) AS span_ns
    FROM (
        SELECT run, rank, start, end_time AS end, blocks,
            if(name IN (SELECT name FROM kernel_names WHERE family = 'nccl'), 0, duration_ns) AS work_ns
        FROM kernels
        WHERE job = {job:String} AND rank = {rank:Int32} AND start >= (SELECT min(begin) FROM groups) AND start < (SELECT max(next) FROM groups)
    ) AS k
    ASOF JOIN (SELECT * FROM groups) AS g ON g.run = k.run AND g.rank = k.rank AND k.start >= g.begin
    WHERE k.start < g.next
    GROUP BY g.run, g.attempt, g.rank, g.from_step
)
GROUP BY run, attempt, from_step
ORDER BY run, attempt, from_step
LIMIT {limit:UInt32}
