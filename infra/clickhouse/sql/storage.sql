-- How much room do the tables take, and how well are they compressed?
-- theme: Data quality
-- chart: bytes_a_row by table
SELECT table, sum(p.rows) AS rows, formatReadableSize(sum(bytes_on_disk)) AS on_disk, round(sum(bytes_on_disk) / sum(p.rows), 2) AS bytes_a_row, count() AS parts
FROM system.parts AS p
WHERE active AND database = currentDatabase()
GROUP BY table
HAVING sum(p.rows) > 0
ORDER BY sum(bytes_on_disk) DESC
LIMIT {limit:UInt32}
