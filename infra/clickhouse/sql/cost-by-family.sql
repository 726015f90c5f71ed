-- What of the money goes into which family of kernels?
-- theme: Cost
-- try: --job demo --price 3.5
-- chart: gpu_s by family
-- GPU time is shared out by kernel time; what is left over ran nothing.
-- @price = 0: of a GPU hour, in your currency; without one money is NULL
WITH (SELECT sum(ranks * dateDiff('nanosecond', started, ended)) FROM jobs WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})) AS allocated_ns
SELECT family, round(sum(ns) / 1e9, 2) AS gpu_s, round(100 * sum(ns) / allocated_ns, 1) AS percent_of_allocated, round(sum(ns) / 3.6e12 * nullIf({price:Float64}, 0), 4) AS money
FROM (
    SELECT n.family AS family, k.ns AS ns
    FROM (SELECT name, sum(gpu_ns) AS ns FROM kernels_per_minute WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) GROUP BY name) AS k
    LEFT ANY JOIN kernel_names AS n ON n.name = k.name
)
GROUP BY family
ORDER BY gpu_s DESC
