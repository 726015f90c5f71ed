-- Why do GPUs run below their clock, and how often?
-- theme: Devices
-- try: --job demo
-- chart: percent_of_samples by rank, reason
-- Bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
SELECT rank, reason, count() AS samples, round(100 * samples / any(all), 1) AS percent_of_samples, round(avg(sm_clock)) AS sm_mhz
FROM (
    SELECT rank, sm_clock, count() OVER (PARTITION BY rank) AS all,
        arrayJoin(arrayFilter(r -> bitAnd(assumeNotNull(throttle_reasons), r.1) != 0, [
            (1, 'gpu idle'), (2, 'application clocks'), (4, 'power cap'), (8, 'hardware slowdown'), (16, 'sync boost'), (32, 'thermal, software'),
            (64, 'thermal, hardware'), (128, 'power brake'), (256, 'display clocks')])).2 AS reason
    FROM device_samples
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')} AND throttle_reasons IS NOT NULL
)
GROUP BY rank, reason
ORDER BY samples DESC, rank, reason
LIMIT {limit:UInt32}
