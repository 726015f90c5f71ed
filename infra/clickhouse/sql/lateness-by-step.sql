-- In which steps was a rank late, and which one?
-- theme: Stragglers
-- try: --job demo --limit 6
SELECT step, argMax(rank, late) AS latest_rank, round(max(late) / 1e6, 2) AS late_ms, round(sum(exposed) / 1e6, 2) AS others_wait_ms
FROM (
    SELECT step, rank, sum(lateness_ns) AS late, sum(exposed_wait_ns) AS exposed
    FROM lateness
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
    GROUP BY step, rank
)
GROUP BY step
ORDER BY late_ms DESC, step
LIMIT {limit:UInt32}
