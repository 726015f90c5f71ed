-- How much of the work comes out of CUDA graphs?
-- theme: Launches
-- try: --job fusion
-- chart: percent by rank
SELECT run, rank, sum(k.launches) AS launches, sum(k.graph_launches) AS from_graphs, round(100 * from_graphs / launches, 1) AS percent
FROM ranks_per_second AS k
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND second >= {since:DateTime64(3, 'UTC')} AND second < {until:DateTime64(3, 'UTC')}
GROUP BY run, rank
ORDER BY run, rank
