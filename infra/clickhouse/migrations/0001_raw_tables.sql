-- Facts, a row an event, each stored exactly once (docs/design/exactly-once.md).
-- What the protocol needs of every table: the deduplication window, and a partition key from event data only.
-- ORDER BY (job, rank, time): smallest on disk and best for the questions asked most; codecs were chosen per column by
-- measurement. _topic_partition (topic id:partition), _offset, _row name the source of a row.
-- min_bytes_for_wide_part: what a sink inserts stays one file for all columns until it is merged, so there are 40 files to
-- force to disk and not 88.
-- fsync: a host that loses power keeps what was acknowledged to Kafka as stored. Retention: `drumline migrate`, from settings.

-- gpu.kernel.v1: kernel executions.
CREATE TABLE IF NOT EXISTS {database}.kernels
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel name' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns UInt64 COMMENT 'duration; ns' CODEC(T64('bit'), ZSTD(1)),
    stream UInt32 COMMENT 'CUDA stream id' CODEC(ZSTD(1)),
    correlation UInt32 COMMENT 'CUPTI correlation id' CODEC(Delta(4), ZSTD(1)),
    grid_x Int32 COMMENT 'grid size x; blocks' CODEC(ZSTD(1)),
    grid_y Int32 COMMENT 'grid size y; blocks' CODEC(ZSTD(1)),
    grid_z Int32 COMMENT 'grid size z; blocks' CODEC(ZSTD(1)),
    block_x Int32 COMMENT 'block size x; threads' CODEC(ZSTD(1)),
    block_y Int32 COMMENT 'block size y; threads' CODEC(T64, ZSTD(1)),
    block_z Int32 COMMENT 'block size z; threads' CODEC(ZSTD(1)),
    cluster_x UInt32 COMMENT 'cluster size x; 0 = no clusters' CODEC(ZSTD(1)),
    registers UInt16 COMMENT 'registers per thread' CODEC(ZSTD(1)),
    shared_static Int32 COMMENT 'static shared memory; bytes' CODEC(ZSTD(1)),
    shared_dynamic Int32 COMMENT 'dynamic shared memory; bytes' CODEC(ZSTD(1)),
    shared_executed UInt32 COMMENT 'shared memory carve-out; bytes' CODEC(ZSTD(1)),
    local_per_thread UInt32 COMMENT 'local memory per thread; bytes' CODEC(ZSTD(1)),
    graph UInt32 COMMENT 'CUDA graph id; 0 = none' CODEC(ZSTD(1)),
    graph_node UInt64 COMMENT 'CUDA graph node id; 0 = none' CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(Delta(8), ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    blocks UInt64 ALIAS toUInt64(grid_x) * toUInt64(grid_y) * toUInt64(grid_z) COMMENT 'blocks in the grid',
    threads_per_block UInt64 ALIAS toUInt64(block_x) * toUInt64(block_y) * toUInt64(block_z) COMMENT 'threads in a block',
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1,
    INDEX by_name name TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'kernel executions';

-- gpu.memcpy.v1: copies and memsets.
CREATE TABLE IF NOT EXISTS {database}.memcpys
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    kind UInt8 COMMENT 'CUPTI copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset' CODEC(ZSTD(1)),
    src_kind UInt8 COMMENT 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none (memset)' CODEC(ZSTD(1)),
    dst_kind UInt8 COMMENT 'target memory kind, same numbers' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'size; bytes' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns UInt64 COMMENT 'duration; ns' CODEC(T64, ZSTD(1)),
    stream UInt32 COMMENT 'CUDA stream id' CODEC(ZSTD(1)),
    correlation UInt32 COMMENT 'CUPTI correlation id' CODEC(Delta(4), ZSTD(1)),
    is_async UInt8 COMMENT '1 = asynchronous copy' CODEC(ZSTD(1)),
    graph UInt32 COMMENT 'CUDA graph id; 0 = none' CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other') COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'target memory as text, the same words',
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'copies and memsets';

-- gpu.collective.v1: collectives of one rank on one communicator.
CREATE TABLE IF NOT EXISTS {database}.collectives
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits; the same on all its ranks. Starts with ~ where it is only guessed, from stream and operation (NCCL without payloads)' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'operation' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'message size; bytes' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number; -1 = outside any step' CODEC(Delta(8), ZSTD(1)),
    ordinal Int32 COMMENT '0, 1, 2, ... per (communicator, step), in launch order' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'duration of the NCCL kernel; ns' CODEC(T64, ZSTD(1)),
    covered_ns Int64 COMMENT 'part of the duration in which other kernels or copies of the same rank ran; ns' CODEC(T64, ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_time start TYPE minmax GRANULARITY 1,
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, communicator, step, ordinal, rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'collectives of one rank on one communicator';

-- gpu.step.v1: steps of one rank with its time budget.
CREATE TABLE IF NOT EXISTS {database}.steps
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    steps_from LowCardinality(String) COMMENT 'source of the steps: api, marker (NVTX ranges), optimizer (a hook on it), inferred (from the collectives); empty = unknown' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number' CODEC(Delta(8), ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start of the step on the host (marker)' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'length of the step on the host; ns' CODEC(T64, ZSTD(1)),
    gpu_start DateTime64(9, 'UTC') COMMENT 'start of the budget interval: end of the previous step\'s last collective on this GPU, or the host start' CODEC(Delta(8), T64, ZSTD(1)),
    gpu_duration_ns Int64 COMMENT 'length of the budget interval; ns. compute + copy + comm_exposed + idle add up to it' CODEC(T64, ZSTD(1)),
    compute_ns Int64 COMMENT 'union of the kernels that are not communication; ns' CODEC(T64, ZSTD(1)),
    compute_overlapped_ns Int64 COMMENT 'part of compute_ns in which communication kernels ran too; ns' CODEC(T64, ZSTD(1)),
    copy_ns Int64 COMMENT 'union of copies between host and device that no kernel but communication covers; ns' CODEC(T64, ZSTD(1)),
    copy_total_ns Int64 COMMENT 'union of copies between host and device; ns' CODEC(T64, ZSTD(1)),
    copy_pageable_ns Nullable(Int64) COMMENT 'part of copy_total_ns from or to pageable host memory; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    comm_ns Int64 COMMENT 'union of the communication kernels; ns' CODEC(T64, ZSTD(1)),
    comm_exposed_ns Int64 COMMENT 'part of comm_ns covered by neither compute nor copies; ns' CODEC(T64, ZSTD(1)),
    idle_ns Int64 COMMENT 'nothing ran on the GPU; ns' CODEC(T64, ZSTD(1)),
    launch_late_ns Nullable(Int64) COMMENT 'part of idle: the launch came late; ns, NULL = no launch records' CODEC(T64, ZSTD(1)),
    sync_ns Nullable(Int64) COMMENT 'part of idle: host waited; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    input_ns Nullable(Int64) COMMENT 'part of idle in a data-loading range; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    kernels Int64 COMMENT 'kernels that are not communication' CODEC(ZSTD(1)),
    blocks Int64 COMMENT 'sum of grid sizes of those kernels; blocks' CODEC(ZSTD(1)),
    collectives Int64 COMMENT 'communication kernels' CODEC(ZSTD(1)),
    skipped UInt8 COMMENT '1 = the budget of this step is not known (a record of one of its collectives was lost): not comparable' CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'steps of one rank with its time budget';

-- gpu.range.v1: NVTX ranges.
CREATE TABLE IF NOT EXISTS {database}.ranges
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'range name' CODEC(ZSTD(1)),
    domain LowCardinality(String) COMMENT 'NVTX domain' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'duration; ns' CODEC(T64, ZSTD(1)),
    id UInt32 COMMENT 'NVTX range id' CODEC(ZSTD(1)),
    parent_id UInt32 COMMENT 'id of the enclosing range of the same process; 0 = none' CODEC(ZSTD(1)),
    depth UInt16 COMMENT 'nesting depth; 0 = outermost' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number; -1 = outside any step' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'NVTX ranges';

-- gpu.device.v1: NVML samples.
CREATE TABLE IF NOT EXISTS {database}.device_samples
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank; -1 = no job runs on the GPU' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'sample time' CODEC(Delta(8), T64, ZSTD(1)),
    util_gpu Nullable(Int64) COMMENT 'time a kernel ran; %; NULL = not supported' CODEC(T64, ZSTD(1)),
    util_memory Nullable(Int64) COMMENT 'memory controller busy; %; NULL = not supported' CODEC(T64, ZSTD(1)),
    memory_used Nullable(Int64) COMMENT 'bytes; NULL = not supported' CODEC(T64, ZSTD(1)),
    memory_total Nullable(Int64) COMMENT 'bytes; NULL = not supported' CODEC(T64, ZSTD(1)),
    power_mw Nullable(Int64) COMMENT 'mW; NULL = not supported' CODEC(T64, ZSTD(1)),
    energy_mj Nullable(Int64) COMMENT 'mJ since driver load; NULL = not supported' CODEC(T64, ZSTD(1)),
    temperature Nullable(Int64) COMMENT 'degrees Celsius; NULL = not supported' CODEC(T64, ZSTD(1)),
    sm_clock Nullable(Int64) COMMENT 'MHz; NULL = not supported' CODEC(T64, ZSTD(1)),
    memory_clock Nullable(Int64) COMMENT 'MHz; NULL = not supported' CODEC(T64, ZSTD(1)),
    throttle_reasons Nullable(Int64) COMMENT 'NVML clock event reasons, bit mask; NULL = not supported' CODEC(T64, ZSTD(1)),
    pcie_rx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    pcie_tx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_rx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_tx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_uncorrected Nullable(Int64) COMMENT 'errors; NULL = not supported' CODEC(T64, ZSTD(1)),
    xid Nullable(Int64) COMMENT 'last XID since the previous sample, 0 = none; NULL = not supported' CODEC(T64, ZSTD(1)),
    fan Nullable(Int64) COMMENT '%; NULL = not supported' CODEC(T64, ZSTD(1)),
    processes Nullable(Int64) COMMENT 'compute processes on the GPU; NULL = not supported' CODEC(T64, ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (job, host, gpu_index, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'NVML samples';
