-- Which kernels are too small for the GPU: fewer blocks than it has multiprocessors?
-- theme: Kernels
-- try: --job fusion --limit 8
-- chart: gpu_s by kernel
-- @sms = 132: multiprocessors of the GPU; 132 on H100 and H200
SELECT n.short AS kernel, n.family AS family, launches, round(blocks[2]) AS p95_blocks, round(threads[2]) AS p95_threads_per_block,
    round(gpu_ns / 1e9, 3) AS gpu_s, round(gpu_ns / launches / 1e3, 1) AS mean_us
FROM (
    SELECT name, sum(k.launches) AS launches, sum(k.gpu_ns) AS gpu_ns, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(k.blocks) AS blocks,
        quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block) AS threads
    FROM kernels_per_minute AS k
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name
    HAVING blocks[2] < {sms:UInt32}
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY gpu_ns DESC
LIMIT {limit:UInt32}
