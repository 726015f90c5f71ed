-- What is recorded of each rank, and what does that cost?
-- theme: Data quality
-- try: --job demo
-- `decoder`, `in_job`: percent of a core, of the process beside the job and of drumline's thread in it. `dropped`: rows
-- that CUPTI or a full spool lost. `policy` names a killed rank. Replayed recordings, as here, have no such figures.
WITH greatest(toFloat64OrZero(collector['decoder_s']), 0.001) / 100 AS percent
SELECT run, rank, policy, toUInt64OrZero(collector['kernels']) AS kernels,
    round(toFloat64OrZero(collector['spool_bytes']) / 1e6, 1) AS megabytes,
    round(toFloat64OrZero(collector['decoder_cpu_s']) / percent, 1) AS decoder,
    round(toFloat64OrZero(collector['job_thread_cpu_s']) / percent, 2) AS in_job,
    toUInt64OrZero(collector['records_dropped']) + toUInt64OrZero(collector['spool_dropped']) AS dropped,
    arrayStringConcat(mapValues(mapFilter((name, text) -> startsWith(name, 'problem'), collector)), ', ') AS problems
FROM processes
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
ORDER BY run, rank
LIMIT {limit:UInt32}
