-- How are the GPUs: power, temperature, clocks, throttling, errors?
-- theme: Devices
-- try: --job demo
-- chart: watts by rank
SELECT d.rank AS rank, host, gpu_index, sum(d.samples) AS samples, round(avgMerge(d.power_mw) / 1e3) AS watts, max(d.max_temperature) AS max_celsius, min(d.min_sm_clock) AS min_sm_mhz,
    max(d.max_sm_clock) AS max_sm_mhz, round(max(d.max_memory_used) / 1e9, 1) AS memory_gb, groupBitOr(d.throttle_reasons) AS throttle_mask,
    max(d.ecc_uncorrected) AS ecc_errors, arraySort(groupUniqArrayArray(d.xids)) AS xids
FROM devices_per_minute AS d
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
GROUP BY rank, host, gpu_index
ORDER BY rank
LIMIT {limit:UInt32}
