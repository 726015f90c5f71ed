-- Who held the job back, when, why, and what did it cost?
-- theme: Stragglers
-- try: --job demo
-- One row for each change of a rank's verdict; of_rank -1 is the job as a whole.
SELECT run, first_step, last_step, of_rank, of_host, state, cause, detail, round(100 * lost_share, 1) AS lost_percent, confidence
FROM stragglers
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND window_start >= {since:DateTime64(3, 'UTC')} AND window_start < {until:DateTime64(3, 'UTC')} AND changed AND of_rank >= 0 AND (severity BETWEEN 1 AND 3 OR state IN ('warning', 'critical', 'cleared'))
ORDER BY window_start, of_rank
LIMIT {limit:UInt32}
