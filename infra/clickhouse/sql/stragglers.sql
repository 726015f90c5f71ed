-- Who held the job back, when, why, and what did it cost?
-- theme: Stragglers
-- try: --job demo
-- One row for each change of a rank's verdict; those of the job as a whole (rank -1) are left out.
SELECT run, first_step, last_step, rank, host, state, cause, detail, round(100 * lost_share, 1) AS lost_percent, confidence
FROM stragglers
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND window_start >= {since:DateTime64(3, 'UTC')} AND window_start < {until:DateTime64(3, 'UTC')} AND changed AND rank >= 0 AND (severity >= 'suspect' OR state IN ('warning', 'critical', 'cleared'))
ORDER BY window_start, rank
LIMIT {limit:UInt32}
