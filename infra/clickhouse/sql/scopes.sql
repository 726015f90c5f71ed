-- Which parts of the program (NVTX ranges) take the time?
-- theme: Steps
-- try: --job demo --limit 8
-- chart: total_s by scope
SELECT domain, if(match(name, '[0-9]'), concat(replaceRegexpOne(name, '[0-9].*$', ''), '...'), name) AS scope, min(r.depth) AS depth, count() AS times,
    round(sum(duration_ns) / 1e9, 2) AS total_s, round(quantileExactInclusive(0.5)(duration_ns) / 1e6, 3) AS p50_ms, round(max(duration_ns) / 1e6, 2) AS max_ms
FROM ranges AS r
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY domain, scope
ORDER BY total_s DESC, domain, scope
LIMIT {limit:UInt32}
