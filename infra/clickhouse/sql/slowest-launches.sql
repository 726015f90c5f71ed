-- Which single launches took longest, without communication?
-- theme: Kernels
-- try: --job demo --limit 6
-- chart: ms by kernel, rank
-- Reads raw rows: give --since and --until on long runs. Here: the last minute of the newest run unless they are given.
WITH (SELECT max(ended) FROM jobs WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS newest
SELECT start, rank, n.short AS kernel, round(duration_ns / 1e6, 3) AS ms, stream, blocks
FROM (
    SELECT start, rank, name, duration_ns, stream, blocks
    FROM kernels
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')} AND start > newest - INTERVAL 60 SECOND
        AND name NOT IN (SELECT name FROM kernel_names WHERE family = 'nccl')
    ORDER BY duration_ns DESC, start, rank
    LIMIT {limit:UInt32}
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY ms DESC, start, rank
