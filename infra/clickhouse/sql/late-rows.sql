-- Which processes sent rows so late that no window could take them?
-- theme: Data quality
-- try: --job demo
SELECT run, rank, topic, max(l.late_rows) AS late_rows, sum(l.rows) AS window_rows
FROM ledger AS l
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND topic IN ('gpu.kernel-frequency.v1', 'gpu.memcpy-bandwidth.v1')
GROUP BY run, rank, topic
ORDER BY late_rows DESC, run, rank, topic
LIMIT {limit:UInt32}
