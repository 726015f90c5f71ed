-- How late does each rank come to collectives, and how long does it wait for others?
-- theme: Stragglers
-- try: --job demo
-- chart: late_ms by rank
-- Means over the steps that could be compared; exposed: waiting that no other work covers.
SELECT rank, count() AS steps, round(avg(lateness_ns) / 1e6, 2) AS late_ms, round(quantileExactInclusive(0.99)(lateness_ns) / 1e6, 2) AS late_p99_ms,
    round(avg(wait_ns) / 1e6, 2) AS waits_ms, round(avg(exposed_wait_ns) / 1e6, 2) AS waits_exposed_ms
FROM lateness
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND collectives > 0
GROUP BY rank
ORDER BY rank
