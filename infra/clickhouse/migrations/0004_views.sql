-- The newest version of rows that replace each other, under the name an analyst would guess. Columns are listed so that
-- DESCRIBE shows what they mean: a view takes no comments over (a test compares them with the tables).
CREATE OR REPLACE VIEW {database}.processes
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    local_rank Int32 COMMENT 'rank on its host',
    world_size Int32 COMMENT 'ranks of the job, as the launcher states',
    pid Int32 COMMENT 'process id on its host',
    start DateTime64(9, 'UTC') COMMENT 'start of the process',
    gpu_index Int32 COMMENT 'index of the GPU on its host',
    gpu_model LowCardinality(String) COMMENT 'as NVML names it',
    k8s_namespace LowCardinality(String) COMMENT 'Kubernetes namespace',
    k8s_pod LowCardinality(String) COMMENT 'Kubernetes pod',
    slurm_job LowCardinality(String) COMMENT 'Slurm job id',
    source LowCardinality(String) COMMENT 'what published it: replay, agent',
    labels Map(String, String) COMMENT 'free labels',
    versions Map(String, String) COMMENT 'versions of driver, CUPTI, NCCL, framework, drumline',
    policy LowCardinality(String) COMMENT 'what is collected at the moment, and why: \'on: always\', \'off: duty 0.2s/10s\'',
    collector Map(String, String) COMMENT 'what collecting cost so far (records, bytes, CPU seconds) and what it could not do, as text',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.processes_versions FINAL
COMMENT 'who a process is';

CREATE OR REPLACE VIEW {database}.kernel_frequency
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window',
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it',
    name LowCardinality(String) COMMENT 'kernel name',
    launches UInt64 COMMENT 'launches that started in the window',
    gpu_ns UInt64 COMMENT 'sum of durations; ns',
    min_ns UInt64 COMMENT 'shortest; ns',
    max_ns UInt64 COMMENT 'longest; ns',
    p50_ns Float64 COMMENT 'duration quantile 0.50, from logarithmic buckets; ns',
    p95_ns Float64 COMMENT 'duration quantile 0.95, from logarithmic buckets; ns',
    p99_ns Float64 COMMENT 'duration quantile 0.99, from logarithmic buckets; ns',
    grid_sum UInt64 COMMENT 'sum of grid sizes; blocks',
    grid_max UInt64 COMMENT 'largest grid; blocks',
    block_sum UInt64 COMMENT 'sum of block sizes; threads',
    block_max UInt32 COMMENT 'largest block; threads',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.kernel_frequency_versions FINAL
COMMENT 'rolling kernel frequency per process, window and kernel';

CREATE OR REPLACE VIEW {database}.memcpy_bandwidth
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window',
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it',
    kind UInt8 COMMENT 'copy kind as in gpu.memcpy.v1',
    src_kind UInt8 COMMENT 'source memory kind',
    dst_kind UInt8 COMMENT 'target memory kind',
    copies UInt64 COMMENT 'copies that started in the window',
    bytes UInt64 COMMENT 'sum of sizes; bytes',
    busy_ns UInt64 COMMENT 'sum of durations; ns',
    max_ns UInt64 COMMENT 'longest; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record',
    direction String COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String COMMENT 'target memory as text, the same words'
)
AS SELECT *, direction, source, target FROM {database}.memcpy_bandwidth_versions FINAL
COMMENT 'copies per process, window, direction and memory kinds';

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
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_copy, slow_link, changed_job, unknown, insufficient_data',
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
