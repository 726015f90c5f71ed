-- How long does one kernel take on each rank: p50, p95, p99?
-- theme: Kernels
-- try: --job demo --kernel vectorized_layer_norm_kernel
-- chart: p50_us, p99_us by rank
-- @kernel: short name of a kernel, as top-kernels shows it; % and _ are wildcards
SELECT rank, host, launches, round(q[1] / 1e3, 2) AS p50_us, round(q[2] / 1e3, 2) AS p95_us, round(q[3] / 1e3, 2) AS p99_us,
    round(most / 1e3, 2) AS max_us
FROM (
    SELECT rank, anyLast(k.host) AS host, sum(k.launches) AS launches, max(max_ns) AS most, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations) AS q
    FROM kernels_per_minute AS k
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
        AND name IN (SELECT name FROM kernel_names WHERE short LIKE {kernel:String})
    GROUP BY rank
)
ORDER BY rank
