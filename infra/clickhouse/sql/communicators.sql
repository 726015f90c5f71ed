-- Which ranks talk to each other?
-- theme: Collectives
-- try: --job demo
SELECT communicator, arraySort(groupUniqArray(rank)) AS ranks, arraySort(groupUniqArray(operation)) AS operations, count() AS collectives, round(sum(bytes) / 1e9, 2) AS gigabytes
FROM collectives
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
GROUP BY communicator
ORDER BY gigabytes DESC
LIMIT {limit:UInt32}
