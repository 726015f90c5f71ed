-- Eager, compiled, CUDA graph: how many launches does a step need, how large are they, how busy is the GPU?
-- theme: Launches
-- try: --job fusion --group 150
-- The recording runs the same forward pass 150 times eager, 150 times compiled and 150 times as a CUDA graph.
-- @group = 20: steps to take together
SELECT intDiv(step, {group:UInt32}) * {group:UInt32} AS from_step, max(step) AS to_step, round(avg(kernels)) AS launches_per_step, round(sum(blocks) / sum(kernels)) AS blocks_per_launch,
    round(median(duration_ns) / 1e6, 2) AS step_ms, round(100 * sum(compute_ns) / sum(gpu_duration_ns), 1) AS busy_percent
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY from_step
ORDER BY from_step
LIMIT {limit:UInt32}
