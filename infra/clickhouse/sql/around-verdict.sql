-- What ran on the rank just then: kernels, copies and ranges around its worst verdict?
-- theme: Stragglers
-- try: --job demo --rank 2 --limit 8
-- @rank: the rank that the verdict names
-- @ms = 20: so long before and after the start of the window's first step; ms
WITH
    (SELECT argMax(window_start, lost_share) FROM stragglers WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank = {rank:Int32} AND severity >= 'suspect') AS moment,
    moment - toIntervalMillisecond({ms:UInt32}) AS low,
    moment + toIntervalMillisecond({ms:UInt32}) AS high
SELECT round((toUnixTimestamp64Nano(at) - toUnixTimestamp64Nano(moment)) / 1e6, 3) AS ms, what, if(n.short != '', n.short, label) AS name, round(ns / 1e6, 3) AS took_ms, stream
FROM (
    SELECT start AS at, 'kernel' AS what, name AS label, toUInt64(duration_ns) AS ns, stream FROM kernels
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank = {rank:Int32} AND start BETWEEN low AND high
    UNION ALL
    SELECT start, direction, concat(source, ' to ', target, ', ', formatReadableSize(bytes)), toUInt64(duration_ns), stream FROM memcpys
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank = {rank:Int32} AND start BETWEEN low AND high
    UNION ALL
    SELECT start, 'range', name, toUInt64(duration_ns), 0 FROM ranges
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND rank = {rank:Int32} AND start BETWEEN low AND high
) AS e
LEFT ANY JOIN kernel_names AS n ON n.name = e.label
ORDER BY took_ms DESC, ms, name
LIMIT {limit:UInt32}
