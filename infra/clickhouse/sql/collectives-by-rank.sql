-- How much time does each rank spend in collectives, and how much of it is covered by other work?
-- theme: Collectives
-- try: --job demo
-- chart: seconds by rank, operation
SELECT rank, operation, count() AS collectives, round(sum(duration_ns) / 1e9, 2) AS seconds, round(100 * sum(covered_ns) / sum(duration_ns), 1) AS covered_percent,
    round(median(duration_ns) / 1e6, 3) AS p50_ms, round(max(duration_ns) / 1e6, 2) AS max_ms
FROM collectives
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY rank, operation
ORDER BY operation, rank
LIMIT {limit:UInt32}
