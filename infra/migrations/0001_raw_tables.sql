-- Facts, a row an event, each stored exactly once (docs/design/exactly-once.md).
-- What the protocol needs of every table: the deduplication window, and a partition key from event data only.
-- ORDER BY (job, rank, time): smallest on disk and best for the questions asked most; codecs were chosen per column by
-- measurement. _topic_partition (topic id:partition), _offset, _row say where a row comes from.
-- fsync: a host that loses power keeps what Kafka was told is stored. Retention: `drumline migrate`, from settings.

-- gpu.kernel.v1: kernel executions.
CREATE TABLE IF NOT EXISTS {database}.kernels
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    name LowCardinality(String) CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns UInt64 CODEC(T64('bit'), ZSTD(1)),
    stream UInt32 CODEC(ZSTD(1)),
    correlation UInt32 CODEC(Delta(4), ZSTD(1)),
    grid_x Int32 CODEC(ZSTD(1)),
    grid_y Int32 CODEC(ZSTD(1)),
    grid_z Int32 CODEC(ZSTD(1)),
    block_x Int32 CODEC(ZSTD(1)),
    block_y Int32 CODEC(T64, ZSTD(1)),
    block_z Int32 CODEC(ZSTD(1)),
    cluster_x UInt32 CODEC(ZSTD(1)),
    registers UInt16 CODEC(ZSTD(1)),
    shared_static Int32 CODEC(ZSTD(1)),
    shared_dynamic Int32 CODEC(ZSTD(1)),
    shared_executed UInt32 CODEC(ZSTD(1)),
    local_per_thread UInt32 CODEC(ZSTD(1)),
    graph UInt32 CODEC(ZSTD(1)),
    graph_node UInt64 CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(Delta(8), ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    blocks UInt64 ALIAS toUInt64(grid_x) * toUInt64(grid_y) * toUInt64(grid_z),
    threads_per_block UInt64 ALIAS toUInt64(block_x) * toUInt64(block_y) * toUInt64(block_z),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1,
    INDEX by_name name TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.memcpy.v1: copies and memsets.
CREATE TABLE IF NOT EXISTS {database}.memcpys
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    kind UInt8 CODEC(ZSTD(1)),
    src_kind UInt8 CODEC(ZSTD(1)),
    dst_kind UInt8 CODEC(ZSTD(1)),
    bytes UInt64 CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    stream UInt32 CODEC(ZSTD(1)),
    correlation UInt32 CODEC(Delta(4), ZSTD(1)),
    is_async UInt8 CODEC(ZSTD(1)),
    graph UInt32 CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other'),
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], ''),
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], ''),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.collective.v1: collectives of one rank on one communicator.
CREATE TABLE IF NOT EXISTS {database}.collectives
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    communicator LowCardinality(String) CODEC(ZSTD(1)),
    operation LowCardinality(String) CODEC(ZSTD(1)),
    bytes UInt64 CODEC(ZSTD(1)),
    step Int64 CODEC(Delta(8), ZSTD(1)),
    ordinal Int32 CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 CODEC(T64, ZSTD(1)),
    covered_ns Int64 CODEC(T64, ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns),
    INDEX by_time start TYPE minmax GRANULARITY 1,
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, communicator, step, ordinal, rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.step.v1: steps of one rank with its time budget.
CREATE TABLE IF NOT EXISTS {database}.steps
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    steps_from LowCardinality(String) CODEC(ZSTD(1)),
    step Int64 CODEC(Delta(8), ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 CODEC(T64, ZSTD(1)),
    gpu_start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    gpu_duration_ns Int64 CODEC(T64, ZSTD(1)),
    compute_ns Int64 CODEC(T64, ZSTD(1)),
    compute_overlapped_ns Int64 CODEC(T64, ZSTD(1)),
    copy_ns Int64 CODEC(T64, ZSTD(1)),
    copy_total_ns Int64 CODEC(T64, ZSTD(1)),
    copy_pageable_ns Nullable(Int64) CODEC(T64, ZSTD(1)),
    comm_ns Int64 CODEC(T64, ZSTD(1)),
    comm_exposed_ns Int64 CODEC(T64, ZSTD(1)),
    idle_ns Int64 CODEC(T64, ZSTD(1)),
    launch_late_ns Nullable(Int64) CODEC(T64, ZSTD(1)),
    sync_ns Nullable(Int64) CODEC(T64, ZSTD(1)),
    input_ns Nullable(Int64) CODEC(T64, ZSTD(1)),
    kernels Int64 CODEC(ZSTD(1)),
    blocks Int64 CODEC(ZSTD(1)),
    collectives Int64 CODEC(ZSTD(1)),
    skipped UInt8 CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.range.v1: NVTX ranges.
CREATE TABLE IF NOT EXISTS {database}.ranges
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    name LowCardinality(String) CODEC(ZSTD(1)),
    domain LowCardinality(String) CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 CODEC(T64, ZSTD(1)),
    id UInt32 CODEC(ZSTD(1)),
    parent_id UInt32 CODEC(ZSTD(1)),
    depth UInt16 CODEC(ZSTD(1)),
    step Int64 CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;

-- gpu.device.v1: NVML samples.
CREATE TABLE IF NOT EXISTS {database}.device_samples
(
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    gpu_index Int32 CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') CODEC(Delta(8), T64, ZSTD(1)),
    util_gpu Nullable(Int64) CODEC(T64, ZSTD(1)),
    util_memory Nullable(Int64) CODEC(T64, ZSTD(1)),
    memory_used Nullable(Int64) CODEC(T64, ZSTD(1)),
    memory_total Nullable(Int64) CODEC(T64, ZSTD(1)),
    power_mw Nullable(Int64) CODEC(T64, ZSTD(1)),
    energy_mj Nullable(Int64) CODEC(T64, ZSTD(1)),
    temperature Nullable(Int64) CODEC(T64, ZSTD(1)),
    sm_clock Nullable(Int64) CODEC(T64, ZSTD(1)),
    memory_clock Nullable(Int64) CODEC(T64, ZSTD(1)),
    throttle_reasons Nullable(Int64) CODEC(T64, ZSTD(1)),
    pcie_rx_kbps Nullable(Int64) CODEC(T64, ZSTD(1)),
    pcie_tx_kbps Nullable(Int64) CODEC(T64, ZSTD(1)),
    nvlink_rx_kbps Nullable(Int64) CODEC(T64, ZSTD(1)),
    nvlink_tx_kbps Nullable(Int64) CODEC(T64, ZSTD(1)),
    ecc_uncorrected Nullable(Int64) CODEC(T64, ZSTD(1)),
    xid Nullable(Int64) CODEC(T64, ZSTD(1)),
    fan Nullable(Int64) CODEC(T64, ZSTD(1)),
    processes Nullable(Int64) CODEC(T64, ZSTD(1)),
    _topic_partition LowCardinality(String) CODEC(ZSTD(1)),
    _offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (job, host, gpu_index, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;
