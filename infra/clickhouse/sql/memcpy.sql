-- How much is copied, in which direction, between which kinds of memory, and how fast?
-- theme: Copies
-- try: --job demo
-- chart: gb_per_s by direction, source, target
SELECT direction, source, target, sum(m.copies) AS copies, round(sum(m.bytes) / 1e9, 2) AS gigabytes, round(sum(m.bytes) / sum(busy_ns), 1) AS gb_per_s,
    round(max(max_ns) / 1e6, 2) AS longest_ms
FROM memcpys_per_minute AS m
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
GROUP BY direction, source, target
ORDER BY gigabytes DESC
