-- How are step times distributed?
-- theme: Steps
-- try: --job demo
-- chart: steps by from_ms
-- @ms = 10: width of a bin; ms
-- A step lasts from the end of the previous step's last collective on that GPU to the end of its own: the host runs ahead.
SELECT floor(gpu_duration_ns / 1e6 / {ms:UInt32}) * {ms:UInt32} AS from_ms, count() AS steps, bar(steps, 0, max(steps) OVER (), 30) AS picture
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY from_ms
ORDER BY from_ms
LIMIT {limit:UInt32}
