-- How fast are collectives, by operation and size?
-- theme: Collectives
-- try: --job demo
-- chart: p50_bus_gb_per_s by operation, from_size
-- The transfer of a collective is its shortest duration over the ranks: the others wait in it. Bus bandwidth as nccl-tests
-- defines it: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
WITH (SELECT groupArray((run, attempt_start)) FROM attempts WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS starts
SELECT operation, ranks, formatReadableSize(pow(2, size)) AS from_size, count() AS collectives, round(median(shortest) / 1e3, 1) AS p50_us,
    round(median(bytes * multiIf(operation = 'AllReduce', 2 * (ranks - 1) / ranks, operation IN ('AllGather', 'ReduceScatter', 'AllToAll'), ranks - 1, 1) / shortest), 1) AS p50_bus_gb_per_s
FROM (
    SELECT run, arrayCount(at -> at.1 = run AND at.2 <= start, starts) AS attempt, communicator, step, ordinal, any(c.operation) AS operation, count() AS ranks, any(c.bytes) AS bytes, min(duration_ns) AS shortest, floor(log2(greatest(bytes, 1))) AS size
    FROM collectives AS c
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND step >= 0
    GROUP BY run, attempt, communicator, step, ordinal
)
WHERE ranks > 1
GROUP BY operation, ranks, size
ORDER BY operation, ranks, size
