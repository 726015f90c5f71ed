-- Which lines of the program, or functions, or scopes, launch the GPU's work, and what does it cost?
-- theme: Launches
-- try: --job demo --price 3.5
-- chart: gpu_s by place
-- Of deep windows with launches (`drumline capture --with kernels,launches,stacks`). GPU time counts for the line that the launching thread ran in the last sample before the launch (100 a second). Of a thread without Python, as autograd's, it counts for the line where the main thread waits for it. Kernels without a launch, a scope or a sample are rows of their own.
-- @by = line: line, function, stack or scope; of a scope numbers are written as N
-- @rank = -1: of this rank; -1 = all
-- @price = 0: of a GPU hour, in your currency; without one money is NULL
WITH
    calls AS (
        SELECT process_id, correlation, start, at, stack, scope, sampled FROM launches
        WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND ({rank:Int32} < 0 OR rank = {rank:Int32})
            AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    ),
    windows AS (
        SELECT process_id, toStartOfMinute(start) AS minute, min(start) AS first, max(start) AS last FROM calls GROUP BY process_id, minute
    )
SELECT multiIf(l.correlation = 0, '(no launch recorded)', {by:String} = 'scope', if(l.scope = '', '(no scope)', replaceRegexpAll(l.scope, '[0-9]+', 'N')), l.sampled = 0, '(no sample)',
        {by:String} = 'stack', l.stack, {by:String} = 'function', replaceRegexpOne(l.at, ' \\(.*$', ''), l.at) AS place,
    round(sum(k.duration_ns) / 1e9, 6) AS gpu_s, round(100 * sum(k.duration_ns) / sum(sum(k.duration_ns)) OVER (), 1) AS percent,
    round(sum(k.duration_ns) / 3.6e12 * nullIf({price:Float64}, 0), 6) AS money, count() AS kernels, uniqExactIf((l.process_id, l.correlation), l.correlation != 0) AS launches,
    round(100 * countIf(l.sampled = 2) / count(), 1) AS by_main_percent
FROM (
    SELECT process_id, correlation, start, duration_ns FROM kernels
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND ({rank:Int32} < 0 OR rank = {rank:Int32})
        AND process_id IN (SELECT process_id FROM windows) AND start >= (SELECT min(first) FROM windows) AND start <= (SELECT max(last) FROM windows) + toIntervalSecond(60)
) AS k
LEFT ANY JOIN calls AS l ON l.process_id = k.process_id AND l.correlation = k.correlation
LEFT ANY JOIN windows AS w ON w.process_id = k.process_id AND w.minute = toStartOfMinute(k.start)
WHERE l.correlation != 0 OR (k.start BETWEEN w.first AND w.last)
GROUP BY place
ORDER BY gpu_s DESC, place
LIMIT {limit:UInt32}
