-- Rows that replace earlier ones with the same key: the newest Kafka offset wins. Read the views (0004), which have the
-- names without _versions.

-- gpu.process.v1: who a process is.
CREATE TABLE IF NOT EXISTS {database}.processes_versions
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    local_rank Int32 CODEC(ZSTD(1)),
    world_size Int32 CODEC(ZSTD(1)),
    pid Int32 CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    gpu_index Int32 CODEC(ZSTD(1)),
    gpu_model LowCardinality(String) CODEC(ZSTD(1)),
    k8s_namespace LowCardinality(String) CODEC(ZSTD(1)),
    k8s_pod LowCardinality(String) CODEC(ZSTD(1)),
    slurm_job LowCardinality(String) CODEC(ZSTD(1)),
    source LowCardinality(String) CODEC(ZSTD(1)),
    labels Map(String, String) CODEC(ZSTD(1)),
    versions Map(String, String) CODEC(ZSTD(1)),
    policy LowCardinality(String) CODEC(ZSTD(1)),
    collector Map(String, String) CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, rank, process_id)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.kernel-frequency.v1: rolling kernel frequency per process, window and kernel.
CREATE TABLE IF NOT EXISTS {database}.kernel_frequency_versions
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 CODEC(ZSTD(1)),
    name LowCardinality(String) CODEC(ZSTD(1)),
    launches UInt64 CODEC(ZSTD(1)),
    gpu_ns UInt64 CODEC(T64, ZSTD(1)),
    min_ns UInt64 CODEC(T64, ZSTD(1)),
    max_ns UInt64 CODEC(T64, ZSTD(1)),
    p50_ns Float64 CODEC(ZSTD(1)),
    p95_ns Float64 CODEC(ZSTD(1)),
    p99_ns Float64 CODEC(ZSTD(1)),
    grid_sum UInt64 CODEC(ZSTD(1)),
    grid_max UInt64 CODEC(ZSTD(1)),
    block_sum UInt64 CODEC(ZSTD(1)),
    block_max UInt32 CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, name)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.memcpy-bandwidth.v1: copies per process, window, direction and memory kinds.
CREATE TABLE IF NOT EXISTS {database}.memcpy_bandwidth_versions
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 CODEC(ZSTD(1)),
    kind UInt8 CODEC(ZSTD(1)),
    src_kind UInt8 CODEC(ZSTD(1)),
    dst_kind UInt8 CODEC(ZSTD(1)),
    copies UInt64 CODEC(ZSTD(1)),
    bytes UInt64 CODEC(ZSTD(1)),
    busy_ns UInt64 CODEC(T64, ZSTD(1)),
    max_ns UInt64 CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other'),
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], ''),
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '')
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, kind, src_kind, dst_kind)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.lateness.v1: waiting of each rank on one communicator, per step.
CREATE TABLE IF NOT EXISTS {database}.lateness_versions
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    communicator LowCardinality(String) CODEC(ZSTD(1)),
    ranks Int32 CODEC(ZSTD(1)),
    point_to_point LowCardinality(String) CODEC(ZSTD(1)),
    step Int64 CODEC(Delta(8), ZSTD(1)),
    of_rank Int32 CODEC(ZSTD(1)),
    collectives Int32 CODEC(ZSTD(1)),
    wait_ns Int64 CODEC(T64, ZSTD(1)),
    lateness_ns Int64 CODEC(T64, ZSTD(1)),
    exposed_wait_ns Int64 CODEC(T64, ZSTD(1)),
    floor_ns Int64 CODEC(T64, ZSTD(1)),
    lag_ns Int64 CODEC(T64, ZSTD(1)),
    bytes UInt64 CODEC(ZSTD(1)),
    worst_ordinal Int32 CODEC(ZSTD(1)),
    worst_operation LowCardinality(String) CODEC(ZSTD(1)),
    worst_longest_ns Int64 CODEC(T64, ZSTD(1)),
    worst_own_ns Int64 CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, communicator, step, of_rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.straggler.v1: verdicts per job and window of steps, a row a rank; of_rank -1 = the job.
CREATE TABLE IF NOT EXISTS {database}.stragglers_versions
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    revision Int64 CODEC(ZSTD(1)),
    first_step Int64 CODEC(ZSTD(1)),
    last_step Int64 CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    ranks_seen Int32 CODEC(ZSTD(1)),
    steps_used Int64 CODEC(ZSTD(1)),
    steps_skipped Int64 CODEC(ZSTD(1)),
    step_ns Int64 CODEC(T64, ZSTD(1)),
    of_rank Int32 CODEC(ZSTD(1)),
    of_host LowCardinality(String) CODEC(ZSTD(1)),
    severity UInt8 CODEC(ZSTD(1)),
    state LowCardinality(String) CODEC(ZSTD(1)),
    changed UInt8 CODEC(ZSTD(1)),
    episode_first_step Int64 CODEC(ZSTD(1)),
    episode_last_step Int64 CODEC(ZSTD(1)),
    cause LowCardinality(String) CODEC(ZSTD(1)),
    detail LowCardinality(String) CODEC(ZSTD(1)),
    of_group LowCardinality(String) CODEC(ZSTD(1)),
    confidence LowCardinality(String) CODEC(ZSTD(1)),
    lost_ns Int64 CODEC(T64, ZSTD(1)),
    lost_share Float64 CODEC(ZSTD(1)),
    lateness_ns Int64 CODEC(T64, ZSTD(1)),
    wait_ns Int64 CODEC(T64, ZSTD(1)),
    gpu_seconds_lost Float64 CODEC(ZSTD(1)),
    money_lost Float64 CODEC(ZSTD(1)),
    evidence_json String CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, first_step, last_step, of_rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;
