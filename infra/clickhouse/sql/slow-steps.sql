-- Which steps were slowest, and whose GPU was busy then?
-- theme: Steps
-- try: --job demo --limit 5
-- chart: ms by step
WITH (SELECT groupArray(attempt_start) FROM attempts WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS starts, arrayCount(at -> at <= start, starts) AS attempt
SELECT run, step, min(start) AS started, round(max(gpu_duration_ns) / 1e6, 1) AS ms, argMax(rank, compute_ns) AS most_compute_rank, argMax(rank, idle_ns) AS most_idle_rank,
    argMin(rank, comm_ns) AS last_to_communicate
FROM steps
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY run, attempt, step
ORDER BY ms DESC, run, step
LIMIT {limit:UInt32}
