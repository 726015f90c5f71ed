-- Which kernels take the GPU's time?
-- theme: Kernels
-- try: --job demo --limit 8
-- chart: gpu_s by kernel
-- GPU time is the sum of durations: kernels that run at the same time count each.
SELECT
    n.short AS kernel, n.family AS family, launches, round(gpu_ns / 1e9, 2) AS gpu_s, round(100 * gpu_ns / sum(gpu_ns) OVER (), 1) AS percent,
    round(gpu_ns / launches / 1e3, 1) AS mean_us, round(q[1] / 1e3, 1) AS p50_us, round(q[3] / 1e3, 1) AS p99_us
FROM (
    SELECT name, sum(k.launches) AS launches, sum(k.gpu_ns) AS gpu_ns, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations) AS q
    FROM kernels_per_minute AS k
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY gpu_ns DESC
LIMIT {limit:UInt32}
