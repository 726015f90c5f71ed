-- Who copies from pageable memory, which stalls the host and is slow?
-- theme: Copies
-- try: --job demo
-- chart: pageable_gb by rank, direction
SELECT rank, anyLast(m.host) AS host, direction, sumIf(m.copies, pageable) AS pageable_copies, round(sumIf(m.bytes, pageable) / 1e9, 2) AS pageable_gb,
    round(sumIf(m.bytes, NOT pageable) / 1e9, 2) AS other_gb, round(sumIf(m.bytes, pageable) / sumIf(busy_ns, pageable), 1) AS pageable_gb_per_s
FROM (SELECT *, direction, source = 'pageable' OR target = 'pageable' AS pageable FROM memcpys_per_minute) AS m
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')} AND direction IN ('HtoD', 'DtoH')
GROUP BY rank, direction
ORDER BY pageable_gb DESC, rank, direction
