-- In which steps was a rank late, and which one?
-- theme: Stragglers
-- try: --job demo --limit 6
-- chart: late_ms by step, latest_rank
WITH
    (SELECT max(n) FROM (
        SELECT uniqExact(communicator) AS n FROM lateness WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) GROUP BY rank
    )) AS of_a_rank,
    (SELECT groupArray(attempt_start) FROM attempts WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS starts,
    bounds AS (
        SELECT arrayCount(at -> at <= attempt_start, starts) AS attempt, step, (round(max(lateness_ns) / 1e6, 2), -step) AS least, (round(of_a_rank * max(lateness_ns) / 1e6, 2), -step) AS most
        FROM lateness WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) GROUP BY attempt, step
    )
SELECT step, argMax(rank, (late, -rank)) AS latest_rank, round(max(late) / 1e6, 2) AS late_ms, round(sum(exposed) / 1e6, 2) AS others_wait_ms
FROM (
    SELECT arrayCount(at -> at <= attempt_start, starts) AS attempt, step, rank, sum(lateness_ns) AS late, sum(exposed_wait_ns) AS exposed
    FROM lateness
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
        AND (arrayCount(at -> at <= attempt_start, starts), step) IN (SELECT attempt, step FROM bounds WHERE most >= (SELECT min(least) FROM (SELECT least FROM bounds ORDER BY least DESC LIMIT {limit:UInt32})))
    GROUP BY attempt, step, rank
)
GROUP BY attempt, step
ORDER BY late_ms DESC, step
LIMIT {limit:UInt32}
