-- Verdicts on rows that NCCL's profiler interface measured without other kernels: waits that may be hidden, and the
-- cause slow_gpu.
ALTER TABLE {database}.lateness_versions ADD COLUMN IF NOT EXISTS
    hidden_wait_ns Int64 COMMENT 'of rows measured by NCCL alone: sum of waits without the longest, hidden where the communicator overlaps compute; ns' CODEC(T64, ZSTD(1))
    AFTER exposed_wait_ns;
ALTER TABLE {database}.stragglers_versions COMMENT COLUMN IF EXISTS
    cause 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, unknown, insufficient_data';

CREATE OR REPLACE VIEW {database}.lateness
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about',
    host LowCardinality(String) COMMENT 'its host',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU',
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
    worst_operation LowCardinality(String) COMMENT 'its operation',
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
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ...',
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
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, unknown, insufficient_data',
    detail LowCardinality(String) COMMENT 'finer cause',
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
AS SELECT * FROM {database}.stragglers_versions FINAL
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole';
