-- Did everything arrive: lost before publication, stored twice, unreadable?
-- theme: Data quality
-- try: --job demo
-- Duplicates are batches published twice and stored once; dead letters lie in the dead-letter topic.
SELECT topic, sum(r.records) AS records, sum(r.rows) AS rows, sum(r.dropped_rows) AS dropped_rows, sum(r.duplicates) AS duplicates, sum(r.dead_letters) AS dead_letters,
    round(sum(r.bytes) / sum(r.rows), 1) AS bytes_a_row
FROM records_per_minute AS r
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
GROUP BY topic
ORDER BY topic
