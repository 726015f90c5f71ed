-- How does the launch rate develop, and do the ranks agree?
-- theme: Launches
-- try: --job demo --limit 6
-- chart: least_of_a_rank, most_of_a_rank over second
SELECT second, sum(each) AS launches, min(each) AS least_of_a_rank, max(each) AS most_of_a_rank, argMin(rank, each) AS least_rank
FROM (
    SELECT second, rank, sum(launches) AS each
    FROM ranks_per_second
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND second >= {since:DateTime64(3, 'UTC')} AND second < {until:DateTime64(3, 'UTC')}
    GROUP BY second, rank
)
GROUP BY second
ORDER BY second
LIMIT {limit:UInt32}
