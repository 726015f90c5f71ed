-- What became slower or faster between two jobs, or two runs of one job?
-- theme: Comparing runs
-- try: --job demo --other mild --limit 8
-- chart: a_ms, b_ms by kernel
-- @other = : the job to compare with; empty = the same job
-- @other_run = : one run of that job; empty = all of them but --run
-- A kernel of one side only has 0 launches on the other. a: the job and run asked for; b: the other. --job X --run R compares R with all other runs of X.
SELECT n.short AS kernel, n.family AS family, a_launches, b_launches, round(a_ns / 1e6, 1) AS a_ms, round(b_ns / 1e6, 1) AS b_ms,
    round(a_ns / nullIf(a_launches, 0) / 1e3, 1) AS a_mean_us, round(b_ns / nullIf(b_launches, 0) / 1e3, 1) AS b_mean_us,
    round(b_mean_us / a_mean_us, 2) AS times
FROM (
    WITH job = {job:String} AND ({run:String} = '' OR run = {run:String}) AS a,
        job = if({other:String} = '', {job:String}, {other:String}) AND if({other_run:String} = '', NOT a, run = {other_run:String}) AS b
    SELECT name, sumIf(k.launches, a) AS a_launches, sumIf(k.launches, b) AS b_launches, sumIf(gpu_ns, a) AS a_ns, sumIf(gpu_ns, b) AS b_ns
    FROM kernels_per_minute AS k
    WHERE job IN ({job:String}, {other:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name
    HAVING a_launches + b_launches > 0
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY greatest(a_ns, b_ns) DESC, kernel
LIMIT {limit:UInt32}
