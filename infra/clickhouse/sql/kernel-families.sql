-- What kind of work is the GPU's time: matrix products, attention, communication, copies?
-- theme: Kernels
-- try: --job demo
-- chart: gpu_s by family
SELECT n.family AS family, uniqExact(k.name) AS kernels, sum(k.launches) AS launches, round(sum(k.gpu_ns) / 1e9, 2) AS gpu_s,
    round(100 * sum(k.gpu_ns) / sum(sum(k.gpu_ns)) OVER (), 1) AS percent
FROM (
    SELECT name, sum(launches) AS launches, sum(gpu_ns) AS gpu_ns
    FROM kernels_per_minute
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY name
) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
GROUP BY family
ORDER BY gpu_s DESC
