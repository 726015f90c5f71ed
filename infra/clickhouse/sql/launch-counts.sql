-- How often is each kernel launched, in which shapes, and how much is copied, where CUPTI records nothing?
-- theme: Launches
-- try: --job demo --limit 8
-- chart: per_s by what
-- Of processes of policy `counts`, per second of their counted time, over ranks. `in_graphs`: share of launches by replays of CUDA graphs. It counts calls of the host: nothing about durations, overlap, streams or steps. Of a graph that was made before counting began only replays are counted (`graph`); nodes are those at its instantiation or last update.
-- @rank = -1: of this rank; -1 = all
WITH counted AS (
    SELECT process_id, kind, direction, name, start, duration_ns, launches, replayed, bytes, toUInt64(grid_x) * grid_y * grid_z AS blocks, toUInt64(block_x) * block_y * block_z AS threads
    FROM launch_counts
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND ({rank:Int32} < 0 OR rank = {rank:Int32})
        AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
), (SELECT sum(ns) / 1e9 FROM (SELECT process_id, start, any(duration_ns) AS ns FROM counted GROUP BY process_id, start)) AS seconds
SELECT if(c.kind != 128, c.direction, if(n.short != '', n.short, c.name)) AS what, c.calls AS launches, round(c.calls / seconds, 1) AS per_s,
    round(c.in_graphs / c.calls, 3) AS in_graphs, c.shapes AS shapes, c.blocks_least AS least_blocks, c.blocks_most AS most_blocks, c.threads_most AS most_threads, round(c.size / seconds / 1e6, 1) AS mb_per_s
FROM (
    SELECT kind, any(counted.direction) AS direction, name, sum(counted.launches) AS calls, sum(replayed) AS in_graphs, uniqExact(blocks, threads) AS shapes,
        min(blocks) AS blocks_least, max(blocks) AS blocks_most, max(threads) AS threads_most, sum(counted.bytes) AS size
    FROM counted GROUP BY kind, name
) AS c
LEFT ANY JOIN kernel_names AS n ON n.name = c.name
ORDER BY c.calls DESC, c.name
LIMIT {limit:UInt32}
