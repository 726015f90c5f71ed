-- The utilisation that NVML reports: what of it is real work?
-- theme: Devices
-- try: --job demo
-- chart: stacked compute_percent, only_communication_percent, idle_percent by rank
-- NVML counts a moment as used when any kernel runs, a waiting NCCL kernel too. Work here is the union of other kernels.
SELECT s.rank AS rank, round(d.util, 1) AS nvml_percent, round(100 * s.compute, 1) AS compute_percent, round(100 * s.comm, 1) AS only_communication_percent,
    round(100 * s.idle, 1) AS idle_percent
FROM (
    SELECT rank, sum(compute_ns) / sum(gpu_duration_ns) AS compute, sum(comm_exposed_ns) / sum(gpu_duration_ns) AS comm, sum(idle_ns) / sum(gpu_duration_ns) AS idle
    FROM steps
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND NOT skipped
    GROUP BY rank
) AS s
LEFT JOIN (
    SELECT rank, avg(util_gpu) AS util
    FROM device_samples
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
        AND time BETWEEN (SELECT min(start) FROM steps WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AND (SELECT max(start) FROM steps WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}))
    GROUP BY rank
) AS d ON d.rank = s.rank
ORDER BY rank
