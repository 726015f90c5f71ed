-- How do launches a step, their sizes and the use of the GPU develop in two jobs, or two runs of one job?
-- theme: Comparing runs
-- try: --job demo --other mild
-- chart: a_launches_per_step, b_launches_per_step over from_minute
-- @other = : the job to compare with; empty = the same job
-- @other_run = : one run of that job; empty = all of them but --run
-- @minutes = 1: minutes of a row
-- a, b: as in compare-kernels; NULL = nothing then. Minutes count from the begin of each run. Launches: of a rank, in steps with kernels. p95: blocks in a grid, threads in a block. Busy: share of the steps' time on the GPU in which kernels ran that are not communication. Only: share of the GPU time in kernels that the other side never launched. Ranks: those whose steps are read, all of a run of up to 512 ranks; of a larger one so many of its hosts (8 ranks), chosen by a hash, that about 512 ranks are.
WITH
    job = {job:String} AND ({run:String} = '' OR run = {run:String}) AS in_a,
    sides AS (
        SELECT job, run, in_a AS is_a, toStartOfMinute(started) AS begin, least(1024, ceil(512 * 1024 / greatest(ranks, 1))) AS slices FROM jobs
        WHERE in_a OR (job = if({other:String} = '', {job:String}, {other:String}) AND ({other_run:String} = '' OR run = {other_run:String}))
    ),
    rolled AS (
        SELECT s.is_a AS is_a, s.begin AS begin, k.minute AS minute, k.name AS name, sum(k.gpu_ns) AS gpu_ns,
            quantilesDDMergeState(0.01, 0.5, 0.95, 0.99)(k.blocks) AS blocks, quantilesDDMergeState(0.01, 0.5, 0.95, 0.99)(k.threads_per_block) AS threads
        FROM kernels_per_minute AS k
        INNER JOIN sides AS s ON s.job = k.job AND s.run = k.run
        WHERE k.job IN ({job:String}, {other:String}) AND k.minute >= {since:DateTime64(3, 'UTC')} AND k.minute < {until:DateTime64(3, 'UTC')}
        GROUP BY is_a, begin, minute, name
    )
SELECT from_minute, round(maxOrNullIf(launches, kind = 'steps' AND is_a), 1) AS a_launches_per_step, round(maxOrNullIf(launches, kind = 'steps' AND NOT is_a), 1) AS b_launches_per_step,
    round(maxOrNullIf(blocks, kind = 'kernels' AND is_a)) AS a_p95_blocks, round(maxOrNullIf(blocks, kind = 'kernels' AND NOT is_a)) AS b_p95_blocks,
    round(maxOrNullIf(threads, kind = 'kernels' AND is_a)) AS a_p95_threads, round(maxOrNullIf(threads, kind = 'kernels' AND NOT is_a)) AS b_p95_threads,
    round(maxOrNullIf(busy, kind = 'steps' AND is_a), 1) AS a_busy_percent, round(maxOrNullIf(busy, kind = 'steps' AND NOT is_a), 1) AS b_busy_percent,
    round(maxOrNullIf(only, kind = 'kernels' AND is_a), 1) AS a_only_percent, round(maxOrNullIf(only, kind = 'kernels' AND NOT is_a), 1) AS b_only_percent,
    round(maxOrNullIf(of_ranks, kind = 'steps' AND is_a), 1) AS a_ranks_percent, round(maxOrNullIf(of_ranks, kind = 'steps' AND NOT is_a), 1) AS b_ranks_percent
FROM (
    SELECT 'kernels' AS kind, is_a, intDiv(dateDiff('minute', begin, minute), {minutes:UInt32}) * {minutes:UInt32} AS from_minute,
        toFloat64(quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.blocks)[3]) AS blocks, toFloat64(quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.threads)[3]) AS threads,
        100 * sumIf(gpu_ns, n.of_sides = 1) / sum(gpu_ns) AS only, 0. AS launches, 0. AS busy, 0. AS of_ranks
    FROM rolled AS r
    INNER JOIN (SELECT name, uniqExact(is_a) AS of_sides FROM rolled GROUP BY name) AS n ON n.name = r.name
    GROUP BY is_a, from_minute
    UNION ALL
    SELECT 'steps', s.is_a, intDiv(dateDiff('minute', s.begin, t.minute), {minutes:UInt32}) * {minutes:UInt32} AS from_minute,
        0., 0., 0., sum(t.launched) / sum(t.counted), 100 * sum(t.compute) / sum(t.total), 100 * min(s.slices) / 1024
    FROM (
        SELECT job, run, toStartOfMinute(start) AS minute, cityHash64(intDiv(rank, 8)) % 1024 AS slice, count() AS counted, sum(kernels + collectives) AS launched, sum(compute_ns) AS compute, sum(gpu_duration_ns) AS total
        FROM steps
        WHERE job IN ({job:String}, {other:String}) AND NOT skipped AND gpu_duration_ns > 0 AND kernels > 0
            AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
            AND rank IN (
                SELECT p.rank FROM processes AS p INNER JOIN sides AS s ON s.job = p.job AND s.run = p.run
                WHERE p.job IN ({job:String}, {other:String}) AND cityHash64(intDiv(p.rank, 8)) % 1024 < s.slices
            )
        GROUP BY job, run, minute, slice
    ) AS t
    INNER JOIN sides AS s ON s.job = t.job AND s.run = t.run
    WHERE t.slice < s.slices
    GROUP BY s.is_a, from_minute
)
GROUP BY from_minute
ORDER BY from_minute
LIMIT {limit:UInt32}
