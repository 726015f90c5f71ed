-- What holds an inference engine up?
-- theme: Serving
-- try: --job served
-- A row a cause and minute; a healthy engine has none. Thresholds and their reasons: docs/guide/inference.md.
SELECT run, minute, host, cause, detail, severity, round(share, 3) AS part, evidence
FROM serving_verdicts
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
ORDER BY minute, host, cause
LIMIT {limit:UInt32}
