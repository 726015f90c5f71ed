-- Rows that replace earlier ones with the same key: the newest Kafka offset wins. Read the views (0004), which have the
-- names without _versions.

-- gpu.process.v1: who a process is.
CREATE TABLE IF NOT EXISTS {database}.processes_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    local_rank Int32 COMMENT 'rank on its host' CODEC(ZSTD(1)),
    world_size Int32 COMMENT 'ranks of the job, as the launcher states' CODEC(ZSTD(1)),
    pid Int32 COMMENT 'process id on its host' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start of the process' CODEC(Delta(8), T64, ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host' CODEC(ZSTD(1)),
    gpu_model LowCardinality(String) COMMENT 'as NVML names it' CODEC(ZSTD(1)),
    k8s_namespace LowCardinality(String) COMMENT 'Kubernetes namespace' CODEC(ZSTD(1)),
    k8s_pod LowCardinality(String) COMMENT 'Kubernetes pod' CODEC(ZSTD(1)),
    slurm_job LowCardinality(String) COMMENT 'Slurm job id' CODEC(ZSTD(1)),
    source LowCardinality(String) COMMENT 'what published it: replay, agent' CODEC(ZSTD(1)),
    labels Map(String, String) COMMENT 'free labels' CODEC(ZSTD(1)),
    versions Map(String, String) COMMENT 'versions of driver, CUPTI, NCCL, framework, drumline' CODEC(ZSTD(1)),
    policy LowCardinality(String) COMMENT 'what is collected at the moment, and why: \'on: always\', \'off: duty 0.2s/10s\'' CODEC(ZSTD(1)),
    collector Map(String, String) COMMENT 'what collecting cost so far (records, bytes, CPU seconds) and what it could not do, as text' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, rank, process_id)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'who a process is';

-- gpu.kernel-frequency.v1: rolling kernel frequency per process, window and kernel.
CREATE TABLE IF NOT EXISTS {database}.kernel_frequency_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window' CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel name' CODEC(ZSTD(1)),
    launches UInt64 COMMENT 'launches that started in the window' CODEC(ZSTD(1)),
    gpu_ns UInt64 COMMENT 'sum of durations; ns' CODEC(T64, ZSTD(1)),
    min_ns UInt64 COMMENT 'shortest; ns' CODEC(T64, ZSTD(1)),
    max_ns UInt64 COMMENT 'longest; ns' CODEC(T64, ZSTD(1)),
    p50_ns Float64 COMMENT 'duration quantile 0.50, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    p95_ns Float64 COMMENT 'duration quantile 0.95, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    p99_ns Float64 COMMENT 'duration quantile 0.99, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    grid_sum UInt64 COMMENT 'sum of grid sizes; blocks' CODEC(ZSTD(1)),
    grid_max UInt64 COMMENT 'largest grid; blocks' CODEC(ZSTD(1)),
    block_sum UInt64 COMMENT 'sum of block sizes; threads' CODEC(ZSTD(1)),
    block_max UInt32 COMMENT 'largest block; threads' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, name)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'rolling kernel frequency per process, window and kernel';

-- gpu.memcpy-bandwidth.v1: copies per process, window, direction and memory kinds.
CREATE TABLE IF NOT EXISTS {database}.memcpy_bandwidth_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window' CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it' CODEC(ZSTD(1)),
    kind UInt8 COMMENT 'copy kind as in gpu.memcpy.v1' CODEC(ZSTD(1)),
    src_kind UInt8 COMMENT 'source memory kind' CODEC(ZSTD(1)),
    dst_kind UInt8 COMMENT 'target memory kind' CODEC(ZSTD(1)),
    copies UInt64 COMMENT 'copies that started in the window' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'sum of sizes; bytes' CODEC(ZSTD(1)),
    busy_ns UInt64 COMMENT 'sum of durations; ns' CODEC(T64, ZSTD(1)),
    max_ns UInt64 COMMENT 'longest; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other') COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'target memory as text, the same words'
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, kind, src_kind, dst_kind)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'copies per process, window, direction and memory kinds';

-- gpu.lateness.v1: waiting of each rank on one communicator, per step.
CREATE TABLE IF NOT EXISTS {database}.lateness_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that the row is about' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU' CODEC(ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    ranks Int32 COMMENT 'ranks seen in the communicator' CODEC(ZSTD(1)),
    point_to_point LowCardinality(String) COMMENT 'sends and receives seen: "" none, exchange = all ranks do the same (a ring, an all-to-all), pipeline = what one sends the other receives' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number' CODEC(Delta(8), ZSTD(1)),
    collectives Int32 COMMENT 'collectives compared; 0 = the step could not be, its ranks disagree on their number' CODEC(ZSTD(1)),
    wait_ns Int64 COMMENT 'sum over collectives of own duration - shortest; ns' CODEC(T64, ZSTD(1)),
    lateness_ns Int64 COMMENT 'sum over collectives of longest - own duration; ns' CODEC(T64, ZSTD(1)),
    exposed_wait_ns Int64 COMMENT 'sum over collectives of max(0, wait - covered_ns); ns' CODEC(T64, ZSTD(1)),
    floor_ns Int64 COMMENT 'sum of the shortest durations; ns' CODEC(T64, ZSTD(1)),
    lag_ns Int64 COMMENT 'largest over collectives of the other ranks\' median duration - own; ns, below 0 = always before them' CODEC(T64, ZSTD(1)),
    bytes UInt64 COMMENT 'sum of message sizes' CODEC(ZSTD(1)),
    worst_ordinal Int32 COMMENT 'collective with the largest lateness of this rank' CODEC(ZSTD(1)),
    worst_operation LowCardinality(String) COMMENT 'its operation' CODEC(ZSTD(1)),
    worst_longest_ns Int64 COMMENT 'its longest duration; ns' CODEC(T64, ZSTD(1)),
    worst_own_ns Int64 COMMENT 'its own duration on this rank; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, communicator, step, rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'waiting of each rank on one communicator, per step';

-- gpu.straggler.v1: verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole.
CREATE TABLE IF NOT EXISTS {database}.stragglers_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that the row is about; -1 = the job as a whole' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ...' CODEC(ZSTD(1)),
    first_step Int64 COMMENT 'first step of the window' CODEC(ZSTD(1)),
    last_step Int64 COMMENT 'last step of the window' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank' CODEC(Delta(8), T64, ZSTD(1)),
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window' CODEC(ZSTD(1)),
    steps_used Int64 COMMENT 'steps compared' CODEC(ZSTD(1)),
    steps_skipped Int64 COMMENT 'steps that could not be compared' CODEC(ZSTD(1)),
    step_ns Int64 COMMENT 'median length of a step; ns' CODEC(T64, ZSTD(1)),
    severity Enum8('insufficient_data' = -1, 'ok' = 0, 'suspect' = 1, 'warning' = 2, 'critical' = 3) COMMENT 'the window on its own; words compare in this order: severity >= \'warning\' leaves out what is not known' CODEC(ZSTD(1)),
    state LowCardinality(String) COMMENT 'alarm state after the window: ok, suspect, warning, critical, cleared, insufficient_data' CODEC(ZSTD(1)),
    changed UInt8 COMMENT '1 = state, severity, cause, detail or group differ from the window before (or there was none); 0 = a heartbeat' CODEC(ZSTD(1)),
    episode_first_step Int64 COMMENT 'first step of the first window of the episode that the alarm is in, or that has just been cleared; -1 = none' CODEC(ZSTD(1)),
    episode_last_step Int64 COMMENT 'last step of its last window that was suspect or worse; -1 = none' CODEC(ZSTD(1)),
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_copy, slow_link, changed_job, unknown, insufficient_data' CODEC(ZSTD(1)),
    detail LowCardinality(String) COMMENT 'finer cause' CODEC(ZSTD(1)),
    group LowCardinality(String) COMMENT 'what is late as a whole and this rank is part of: a host or a communicator; empty = the rank alone' CODEC(ZSTD(1)),
    confidence LowCardinality(String) COMMENT 'confidence in the cause: none, low, medium, high' CODEC(ZSTD(1)),
    lost_ns Int64 COMMENT 'time the job lost to this rank in the window; ns' CODEC(T64, ZSTD(1)),
    lost_share Float64 COMMENT 'lost_ns over the time of the steps that the rank was compared in (of the window, for the job as a whole); 0..1' CODEC(ZSTD(1)),
    lateness_ns Int64 COMMENT 'sum of its lateness; ns' CODEC(T64, ZSTD(1)),
    wait_ns Int64 COMMENT 'sum of its waiting; ns' CODEC(T64, ZSTD(1)),
    gpu_seconds_lost Float64 COMMENT 'GPU-seconds the other ranks spent waiting for it, 0 unless it is suspect or worse; for the job as a whole, those all ranks lost' CODEC(ZSTD(1)),
    money_lost Float64 COMMENT 'those at the configured price' CODEC(ZSTD(1)),
    evidence_json String COMMENT 'evidence: the numbers that the verdict rests on, as JSON' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, first_step, last_step, rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole';
