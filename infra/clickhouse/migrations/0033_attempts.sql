-- A job that restarts under one run id begins a new attempt, whose steps count from anywhere again: no row of one attempt
-- replaces a row of another.
ALTER TABLE {database}.lateness_versions
    ADD COLUMN IF NOT EXISTS attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process, of the ranks that this worker joins; 1970 = an older worker' CODEC(Delta(8), ZSTD(1)) AFTER gpu_uuid,
    MODIFY ORDER BY (job, run, communicator, step, rank, attempt_start);
ALTER TABLE {database}.stragglers_versions
    ADD COLUMN IF NOT EXISTS attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker' CODEC(Delta(8), ZSTD(1)) AFTER gpu_uuid,
    MODIFY ORDER BY (job, run, first_step, last_step, rank, evaluation, attempt_start);
ALTER TABLE {database}.hangs_versions
    ADD COLUMN IF NOT EXISTS attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker' CODEC(Delta(8), ZSTD(1)) AFTER gpu_uuid,
    MODIFY ORDER BY (job, run, episode, revision, rank, attempt_start);
ALTER TABLE {database}.evaluations
    ADD COLUMN IF NOT EXISTS attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker' CODEC(Delta(8), ZSTD(1)) AFTER run,
    MODIFY ORDER BY (job, run, evaluation, attempt_start);

-- In place: no row is inserted between two views.
ALTER TABLE {database}.evaluations_from_verdicts MODIFY QUERY
SELECT
    job,
    run,
    attempt_start,
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
GROUP BY job, run, attempt_start, evaluation;
ALTER TABLE {database}.evaluations_from_verdicts
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN attempt_start 'which attempt of the run: start of its first process; 1970 = an older worker',
    COMMENT COLUMN evaluation 'app id of the stream worker and its steps of a window; empty = an older worker',
    COMMENT COLUMN begun 'when Kafka got its first verdict; min',
    COMMENT COLUMN steps 'steps that it has evaluated: those of windows with a verdict on the job or a named rank',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

CREATE OR REPLACE VIEW {database}.lateness
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about',
    host LowCardinality(String) COMMENT 'its host',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process, of the ranks that this worker joins; 1970 = an older worker',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    ranks Int32 COMMENT 'ranks seen in the communicator',
    point_to_point LowCardinality(String) COMMENT 'sends and receives seen: "" none, exchange = all ranks do the same (a ring, an all-to-all), pipeline = what one sends the other receives',
    step Int64 COMMENT 'step number',
    collectives Int32 COMMENT 'collectives compared; 0 = the step could not be, its ranks disagree on their number',
    wait_ns Int64 COMMENT 'sum over collectives of own duration - shortest; ns',
    lateness_ns Int64 COMMENT 'sum over collectives of longest - own duration; ns',
    exposed_wait_ns Int64 COMMENT 'sum over collectives of max(0, wait - covered_ns); ns',
    hidden_wait_ns Int64 COMMENT 'of rows measured by NCCL alone: sum of waits without the longest, hidden where the communicator overlaps compute; ns',
    floor_ns Int64 COMMENT 'sum of the shortest durations; ns',
    lag_ns Int64 COMMENT 'largest over collectives of the other ranks\' median duration - own; ns, below 0 = always before them',
    bytes UInt64 COMMENT 'sum of message sizes',
    worst_ordinal Int32 COMMENT 'collective with the largest lateness of this rank',
    worst_operation LowCardinality(String) COMMENT 'its operation: AllReduce, AllGather, ReduceScatter, AllToAll, Send, Recv, SendRecv, Broadcast, Scatter; empty = none',
    worst_longest_ns Int64 COMMENT 'its longest duration; ns',
    worst_own_ns Int64 COMMENT 'its own duration on this rank; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.lateness_versions FINAL
COMMENT 'waiting of each rank on one communicator, per step';

CREATE OR REPLACE VIEW {database}.stragglers
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker',
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
        SELECT job, run, attempt_start, evaluation, min(begun) AS since, groupBitmapMergeState(e.steps) AS evaluated
        FROM {database}.evaluations AS e
        WHERE (job, run) IN (SELECT job, run FROM {database}.evaluations GROUP BY job, run HAVING uniqExact(evaluation) > 1)
        GROUP BY job, run, attempt_start, evaluation
    )
    SELECT
        one.job AS job,
        one.run AS run,
        one.attempt_start AS attempt_start,
        one.evaluation AS evaluation,
        any(one.evaluated) AS own,
        groupBitmapMergeState(other.evaluated) AS others,
        groupBitmapMergeStateIf(other.evaluated, (other.since, other.evaluation) > (one.since, one.evaluation)) AS newer
    FROM known AS one INNER JOIN known AS other ON one.job = other.job AND one.run = other.run
    -- An older worker knew no attempts: its verdicts are those of any.
    -- Another evaluation may name an attempt by another process, if its first one reported late: they start within a minute.
    WHERE one.evaluation != other.evaluation AND (abs(toUnixTimestamp64Nano(one.attempt_start) - toUnixTimestamp64Nano(other.attempt_start)) < 60000000000 OR toUnixTimestamp64Nano(one.attempt_start) = 0)
    GROUP BY job, run, attempt_start, evaluation
) AS n ON n.job = v.job AND n.run = v.run AND n.attempt_start = v.attempt_start AND n.evaluation = v.evaluation
-- Hidden is a window of which a newer evaluation has evaluated half, and one that any other has and this one has not.
WHERE v.first_step < 0 OR 2 * bitmapCardinality(bitmapSubsetInRange(
    if(bitmapCardinality(bitmapSubsetInRange(n.own, toUInt64(v.first_step), toUInt64(v.last_step + 1))) = 0, n.others, n.newer),
    toUInt64(v.first_step), toUInt64(v.last_step + 1))) < greatest(v.last_step - v.first_step + 1, 1)
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole. Of a run that was evaluated again, those in force';

CREATE OR REPLACE VIEW {database}.hangs
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown',
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known',
    elements Int64 COMMENT 'its number of elements',
    bytes Int64 COMMENT 'its size; bytes',
    waiting Int32 COMMENT 'ranks that wait in it',
    step Int64 COMMENT 'step of the rank; -1 = none',
    note String COMMENT 'what is known of it, a sentence',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.hangs_versions FINAL
COMMENT 'jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes';

CREATE OR REPLACE VIEW {database}.hangs_now
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = an older worker',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown',
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known',
    elements Int64 COMMENT 'its number of elements',
    bytes Int64 COMMENT 'its size; bytes',
    waiting Int32 COMMENT 'ranks that wait in it',
    step Int64 COMMENT 'step of the rank; -1 = none',
    note String COMMENT 'what is known of it, a sentence',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.hangs_versions FINAL WHERE (job, run, (attempt_start, time, episode, revision)) IN (
    SELECT h.job, h.run, max((h.attempt_start, h.time, h.episode, h.revision))
    FROM {database}.hangs_versions AS h GROUP BY h.job, h.run)
COMMENT 'the newest state of each run in hangs';
