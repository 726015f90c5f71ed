-- What does a kernel ask of a multiprocessor: threads, registers, shared memory?
-- theme: Kernels
-- try: --job demo --limit 8
SELECT n.short AS kernel, launches, round(blocks[1]) AS p50_blocks, round(threads[1]) AS p50_threads_per_block, registers AS registers_per_thread,
    round(shared_bytes / 1024, 1) AS shared_kib
FROM (
    SELECT name, sum(k.launches) AS launches, sum(gpu_ns) AS gpu, max(k.registers) AS registers, max(k.shared_bytes) AS shared_bytes,
        quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(k.blocks) AS blocks, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block) AS threads
    FROM kernels_per_minute AS k
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY gpu DESC
LIMIT {limit:UInt32}
