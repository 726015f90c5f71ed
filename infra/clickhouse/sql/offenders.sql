-- Which GPUs and hosts were at fault again and again, over all jobs?
-- theme: Devices
-- chart: faulty_runs by host, gpu_uuid
-- At fault: a verdict of warning or worse for a cause that is the hardware's, an XID of the hardware, a loss, or a failed health check. Ranks that wait for one are not named; hosts that are late for another cause are in `late-hosts`. `runs`: that used the GPU.
-- @host = : this host; empty = all of them
SELECT host, gpu_uuid, serial, faulty_runs, runs, verdicts, xids, losses, failed_checks, causes, round(gpu_seconds_lost) AS gpu_s_lost, last_time AS last
FROM offenders
WHERE ({host:String} = '' OR host = {host:String}) AND last_time >= {since:DateTime64(3, 'UTC')} AND last_time < {until:DateTime64(3, 'UTC')}
ORDER BY faulty_runs DESC, notEmpty(xids) + losses + length(failed_checks) DESC, gpu_seconds_lost DESC, host, gpu_uuid
LIMIT {limit:UInt32}
