-- When was copied, in windows of 10 s?
-- theme: Copies
-- try: --job demo
-- chart: gb_per_s over window_start by direction
-- The stream worker's windows; every other one, since they overlap by half.
SELECT window_start, direction, sum(m.copies) AS copies, round(sum(m.bytes) / 1e9, 2) AS gigabytes, round(sum(m.bytes) / sum(busy_ns), 1) AS gb_per_s
FROM memcpy_bandwidth AS m
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND window_start >= {since:DateTime64(3, 'UTC')} AND window_start < {until:DateTime64(3, 'UTC')} AND direction != 'memset'
    AND toUnixTimestamp64Nano(window_start) % (toUnixTimestamp64Nano(window_end) - toUnixTimestamp64Nano(window_start)) = 0
GROUP BY window_start, direction
ORDER BY window_start, direction
LIMIT {limit:UInt32}
