-- Every row without a verdict has a detail.
ALTER TABLE {database}.stragglers_versions COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers,no_past,ranks_missing,few_steps_recorded,no_collectives,unlike_collectives,few_steps_compared,other_source,stalled,silent,quarantine';
ALTER TABLE {database}.stragglers COMMENT COLUMN
    detail 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers,no_past,ranks_missing,few_steps_recorded,no_collectives,unlike_collectives,few_steps_compared,other_source,stalled,silent,quarantine';

-- Which windows of steps could be evaluated, and why the others could not: derived from the row of the job as a whole.
CREATE OR REPLACE VIEW {database}.coverage
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    first_step Int64 COMMENT 'first step of the window; -1 = the stream worker dropped the job for some minutes',
    last_step Int64 COMMENT 'last step of the window',
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank',
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank',
    evaluated UInt8 COMMENT '1 = the window has verdicts',
    reason LowCardinality(String) COMMENT 'why it has none: ranks_missing, few_steps_recorded, no_collectives, unlike_collectives, few_steps_compared, other_source, no_past, quarantine; empty = it has',
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window',
    steps_used Int64 COMMENT 'steps compared',
    steps_skipped Int64 COMMENT 'steps that could not be compared',
    step_ns Int64 COMMENT 'median length of a step; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record'
)
AS SELECT
    job,
    run,
    first_step,
    last_step,
    window_start,
    window_end,
    severity >= 'ok' AS evaluated,
    toLowCardinality(if(severity >= 'ok', '', toString(detail))) AS reason,
    ranks_seen,
    steps_used,
    steps_skipped,
    step_ns,
    published
FROM {database}.stragglers
WHERE rank = -1 AND detail NOT IN ('stalled', 'silent')
COMMENT 'a row a window of steps with rows of any rank: whether it was evaluated, and why not';

CREATE OR REPLACE VIEW {database}.job_coverage
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    windows UInt64 COMMENT 'windows of steps; those in which a past was too short count only while none was evaluated',
    evaluated_windows UInt64 COMMENT 'of them, those with verdicts',
    evaluated_share Nullable(Float64) COMMENT 'their share; 0..1, NULL without windows',
    reason LowCardinality(String) COMMENT 'why most others have none, as in `coverage`; without windows no_steps = none is known, no_verdict = none was evaluated; empty = all have'
)
AS SELECT
    job,
    run,
    if(w.evaluated > 0, w.measured, w.seen) AS windows,
    w.evaluated AS evaluated_windows,
    if(windows = 0, NULL, evaluated_windows / windows) AS evaluated_share,
    toLowCardinality(multiIf(windows > 0, if(evaluated_windows < windows, w.why, ''),
        j.ranks < 2, '', j.steps > 0, 'no_verdict', 'no_steps')) AS reason
FROM {database}.jobs AS j
LEFT JOIN (
    SELECT job, run, count() AS seen, countIf(c.evaluated OR c.reason != 'no_past') AS measured,
        countIf(c.evaluated) AS evaluated,
        multiIf(
            countIf(NOT c.evaluated AND c.reason != 'no_past') > 0,
            toString(topKIf(1)(c.reason, NOT c.evaluated AND c.reason != 'no_past')[1]),
            countIf(NOT c.evaluated) > 0, 'no_past', '') AS why
    FROM {database}.coverage AS c GROUP BY job, run
) AS w USING (job, run)
COMMENT 'a row a run: the part of its windows of steps that was evaluated, and why the rest was not';

-- Communication of other libraries than NCCL.
ALTER TABLE {database}.kernel_names_versions COMMENT COLUMN
    family 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, communication = that of other libraries, copy, other';
ALTER TABLE {database}.kernel_names COMMENT COLUMN
    family 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, communication = that of other libraries, copy, other';
