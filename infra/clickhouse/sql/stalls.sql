-- What do the warps of each kernel wait for?
-- theme: Launches
-- try: --job demo
-- chart: percent by kernel, reason
-- Of deep windows with samples of the GPU (`drumline capture --with kernels,pc`). `percent`: of the kernel's samples; `idle_percent`: those of them in which the scheduler issued nothing; `gpu_percent`: the kernel's share of all. Reasons are named as by CUPTI: `long_scoreboard` waits for memory, `math_pipe_throttle` for a full unit, `selected` for nothing. Samples outside the program's kernels, and those that the GPU dropped, are rows of their own.
-- @rank = -1: of this rank; -1 = all
WITH sums AS (
    SELECT name, reason, sum(samples) AS in_reason, sum(not_issued) AS idle FROM stalls
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND ({rank:Int32} < 0 OR rank = {rank:Int32})
        AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY name, reason HAVING in_reason > 0
)
SELECT if(s.name = '', '(no kernel)', if(n.short != '', n.short, s.name)) AS kernel, s.reason AS reason, round(100 * s.in_reason / t.in_kernel, 1) AS percent,
    round(100 * s.idle / t.in_kernel, 1) AS idle_percent, round(100 * t.in_kernel / (SELECT sum(in_reason) FROM sums), 1) AS gpu_percent, s.in_reason AS samples
FROM sums AS s
INNER JOIN (SELECT name, sum(in_reason) AS in_kernel FROM sums GROUP BY name) AS t ON t.name = s.name
LEFT ANY JOIN kernel_names AS n ON n.name = s.name
ORDER BY t.in_kernel DESC, s.name, samples DESC, reason
LIMIT {limit:UInt32}
