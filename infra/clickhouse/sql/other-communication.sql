-- Which share of the time is communication of other libraries than NCCL, which verdicts do not understand?
-- theme: Collectives
-- try: --job demo
-- chart: percent by library, kernel
-- By names of kernels (`other`: NVSHMEM, DeepEP, symmetric memory, custom all-reduces), so only where CUPTI records. The
-- share is of the time of all recorded kernels: of steps, where kernels do not overlap.
SELECT run, if(family = 'nccl', 'nccl', 'other') AS library, short AS kernel, launches, gpu_s, percent
FROM (
    SELECT k.run AS run, n.short AS short, n.family AS family, sum(k.launches) AS launches, round(sum(k.gpu_ns) / 1e9, 3) AS gpu_s,
        round(100 * sum(k.gpu_ns) / sum(sum(k.gpu_ns)) OVER (PARTITION BY run), 1) AS percent
    FROM (
        SELECT run, name, sum(r.launches) AS launches, sum(r.gpu_ns) AS gpu_ns
        FROM kernels_per_minute AS r
        WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
        GROUP BY run, name
    ) AS k LEFT ANY JOIN kernel_names AS n ON n.name = k.name
    GROUP BY run, short, family
)
WHERE family IN ('communication', 'nccl')
ORDER BY library DESC, gpu_s DESC
LIMIT {limit:UInt32}
