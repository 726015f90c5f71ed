-- How many kernels a second does each rank launch, and how busy is its GPU with them?
-- theme: Launches
-- try: --job demo
-- chart: per_second by rank
SELECT rank, anyLast(r.host) AS host, round(sum(r.launches) / count()) AS per_second, max(each) AS busiest_second, round(sum(gpu) / count() / 1e9, 3) AS kernel_s_per_s
FROM (
    SELECT rank, second, anyLast(h.host) AS host, sum(h.launches) AS launches, sum(h.launches) AS each, sum(gpu_ns) AS gpu
    FROM ranks_per_second AS h
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND second >= {since:DateTime64(3, 'UTC')} AND second < {until:DateTime64(3, 'UTC')}
    GROUP BY rank, second
) AS r
GROUP BY rank
ORDER BY rank
