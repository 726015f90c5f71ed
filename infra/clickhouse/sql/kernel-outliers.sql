-- On which rank does a kernel take longer than on the others?
-- theme: Kernels
-- try: --job demo --limit 8
-- chart: times by kernel, rank
-- Medians of the same kernel on each rank, against the median of those medians; kernels of at least 1% of the GPU's time.
SELECT n.short AS kernel, n.family AS family, rank, round(p50 / 1e3, 1) AS p50_us, round(others / 1e3, 1) AS others_us, round(p50 / others, 2) AS times,
    round(gpu_ns / 1e9, 2) AS gpu_s
FROM (
    SELECT name, rank, sum(k.gpu_ns) AS gpu_ns, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations)[1] AS p50,
        median(p50) OVER (PARTITION BY name) AS others, sum(gpu_ns) OVER (PARTITION BY name) / sum(gpu_ns) OVER () AS share
    FROM kernels_per_minute AS k
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name, rank
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
WHERE share >= 0.01 AND family != 'nccl'
ORDER BY times DESC, kernel, rank
LIMIT {limit:UInt32}
