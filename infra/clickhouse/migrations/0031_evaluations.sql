-- A run can be evaluated more than once: by a worker with another app id, or with windows of other lengths. Each evaluation
-- has rows of its own, and of the steps that several have evaluated one is in force: the newest begun.
ALTER TABLE {database}.stragglers_versions
    ADD COLUMN IF NOT EXISTS evaluation LowCardinality(String) COMMENT 'which evaluation of the run: app id of the stream worker and its steps of a window; empty = an older worker' CODEC(ZSTD(1)) AFTER revision,
    MODIFY ORDER BY (job, run, first_step, last_step, rank, evaluation);

CREATE TABLE IF NOT EXISTS {database}.evaluations
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    evaluation LowCardinality(String) COMMENT 'app id of the stream worker and its steps of a window; empty = an older worker' CODEC(ZSTD(1)),
    begun SimpleAggregateFunction(min, DateTime64(3, 'UTC')) COMMENT 'when Kafka got its first verdict; min' CODEC(ZSTD(1)),
    steps AggregateFunction(groupBitmap, UInt64) COMMENT 'steps that it has evaluated: those of windows with a verdict on the job or a named rank' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when Kafka got the last one; max' CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
ORDER BY (job, run, evaluation)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'evaluations of runs; in `stragglers` the newest begun is in force for windows of which it has evaluated half of the steps';

-- Repeated, it changes nothing: the least, the greatest and the union of the same.
INSERT INTO {database}.evaluations
SELECT
    job,
    run,
    evaluation,
    min(published) AS begun,
    groupBitmapState(step) AS steps,
    max(published) AS last_published
FROM {database}.stragglers_versions AS s
-- Of the other rows no steps, and no array: their steps may be anything.
ARRAY JOIN range(
    toUInt64(s.first_step),
    if(s.first_step >= 0 AND s.last_step >= s.first_step AND s.last_step - s.first_step < 100000 AND (severity > 0 OR rank = -1 AND severity = 0), toUInt64(s.last_step + 1), 0)
) AS step
GROUP BY job, run, evaluation;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.evaluations_from_verdicts TO {database}.evaluations
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    evaluation LowCardinality(String) COMMENT 'app id of the stream worker and its steps of a window; empty = an older worker',
    begun DateTime64(3, 'UTC') COMMENT 'when Kafka got its first verdict; min',
    steps AggregateFunction(groupBitmap, UInt64) COMMENT 'steps that it has evaluated: those of windows with a verdict on the job or a named rank',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    evaluation,
    min(published) AS begun,
    groupBitmapState(step) AS steps,
    max(published) AS last_published
FROM {database}.stragglers_versions AS s
-- Of the other rows no steps, and no array: their steps may be anything.
ARRAY JOIN range(
    toUInt64(s.first_step),
    if(s.first_step >= 0 AND s.last_step >= s.first_step AND s.last_step - s.first_step < 100000 AND (severity > 0 OR rank = -1 AND severity = 0), toUInt64(s.last_step + 1), 0)
) AS step
GROUP BY job, run, evaluation;

CREATE OR REPLACE VIEW {database}.stragglers
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ...',
    evaluation LowCardinality(String) COMMENT 'which evaluation of the run: app id of the stream worker and its steps of a window; empty = an older worker',
    first_step Int64 COMMENT 'first step of the window',
    last_step Int64 COMMENT 'last step of the window',
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank',
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank',
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window',
    steps_used Int64 COMMENT 'steps compared',
    steps_skipped Int64 COMMENT 'steps that could not be compared',
    step_ns Int64 COMMENT 'median length of a step; ns',
    severity Enum8('insufficient_data' = -1, 'ok' = 0, 'suspect' = 1, 'warning' = 2, 'critical' = 3) COMMENT 'the window on its own; words compare in this order: severity >= \'warning\' leaves out what is not known',
    state LowCardinality(String) COMMENT 'alarm state after the window: ok, suspect, warning, critical, cleared, insufficient_data',
    changed UInt8 COMMENT '1 = state, severity, cause, detail or group differ from the window before (or there was none); 0 = a heartbeat',
    episode_first_step Int64 COMMENT 'first step of the first window of the episode that the alarm is in, or that has just been cleared; -1 = none',
    episode_last_step Int64 COMMENT 'last step of its last window that was suspect or worse; -1 = none',
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, jitter, unknown, insufficient_data',
    detail LowCardinality(String) COMMENT 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers,no_past,ranks_missing,few_steps_recorded,no_collectives,unlike_collectives,few_steps_compared,other_source,stalled,silent,quarantine',
    group LowCardinality(String) COMMENT 'what is late as a whole and this rank is part of: a host or a communicator; empty = the rank alone',
    confidence LowCardinality(String) COMMENT 'confidence in the cause: none, low, medium, high',
    lost_ns Int64 COMMENT 'time the job lost to this rank in the window; ns',
    lost_share Float64 COMMENT 'lost_ns over the time of the steps that the rank was compared in (of the window, for the job as a whole); 0..1',
    lateness_ns Int64 COMMENT 'sum of its lateness; ns',
    wait_ns Int64 COMMENT 'sum of its waiting; ns',
    gpu_seconds_lost Float64 COMMENT 'GPU-seconds the other ranks spent waiting for it, 0 unless it is suspect or worse; for the job as a whole, those all ranks lost',
    money_lost Float64 COMMENT 'those at the configured price',
    evidence_json String COMMENT 'evidence: the numbers that the verdict rests on, as JSON',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT v.*
FROM {database}.stragglers_versions AS v FINAL
LEFT JOIN (
    WITH known AS (
        SELECT job, run, evaluation, min(begun) AS since, groupBitmapMergeState(e.steps) AS evaluated
        FROM {database}.evaluations AS e
        WHERE (job, run) IN (SELECT job, run FROM {database}.evaluations GROUP BY job, run HAVING uniqExact(evaluation) > 1)
        GROUP BY job, run, evaluation
    )
    SELECT
        one.job AS job,
        one.run AS run,
        one.evaluation AS evaluation,
        any(one.evaluated) AS own,
        groupBitmapMergeState(other.evaluated) AS others,
        groupBitmapMergeStateIf(other.evaluated, (other.since, other.evaluation) > (one.since, one.evaluation)) AS newer
    FROM known AS one INNER JOIN known AS other ON one.job = other.job AND one.run = other.run
    WHERE one.evaluation != other.evaluation
    GROUP BY job, run, evaluation
) AS n ON n.job = v.job AND n.run = v.run AND n.evaluation = v.evaluation
-- Hidden is a window of which a newer evaluation has evaluated half, and one that any other has and this one has not.
WHERE v.first_step < 0 OR 2 * bitmapCardinality(bitmapSubsetInRange(
    if(bitmapCardinality(bitmapSubsetInRange(n.own, toUInt64(v.first_step), toUInt64(v.last_step + 1))) = 0, n.others, n.newer),
    toUInt64(v.first_step), toUInt64(v.last_step + 1))) < greatest(v.last_step - v.first_step + 1, 1)
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole. Of a run that was evaluated again, those in force';
