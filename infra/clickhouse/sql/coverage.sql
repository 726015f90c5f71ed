-- Which part of each run could be evaluated, and why not the rest?
-- theme: Stragglers
-- try: --job demo
-- chart: evaluated_percent by job, run
-- A row a run, of its windows of steps; those of one run are in the view `coverage`. `no_steps`: none of its steps are known.
SELECT c.job AS job, c.run AS run, windows, evaluated_windows, round(100 * evaluated_share, 1) AS evaluated_percent, reason
FROM job_coverage AS c INNER JOIN jobs AS j USING (job, run)
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
ORDER BY j.started DESC
LIMIT {limit:UInt32}
