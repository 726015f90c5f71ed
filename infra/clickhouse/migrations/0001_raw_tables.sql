-- Facts, a row an event, each stored exactly once (docs/design/exactly-once.md).
-- What the protocol needs of every table: the deduplication window, and a partition key from event data only.
-- ORDER BY (job, rank, time): smallest on disk and best for the questions asked most; codecs were chosen per column by
-- measurement. _topic_partition (topic id:partition), _offset, _row name the source of a row.
-- published: retention counts from when Kafka got a record, not from the time of its rows. So what an agent publishes after a
-- long outage, and what comes back out of an archive, is kept as long as what is new. Its default is for rows of other writers.
-- min_bytes_for_wide_part: what a sink inserts stays one file for all columns until it is merged, so there are 40 files to
-- force to disk and not 88.
-- fsync: a host that loses power keeps what was acknowledged to Kafka as stored. Retention: `drumline migrate`, from settings.

-- gpu.kernel.v1: kernel executions. A launch has at least no block, and the dimensions y and z of a grid at most 65,535 (CUDA
-- C++ Programming Guide, "Technical Specifications per Compute Capability"). Records may hold any number of 32 bits: the
-- product of those would wrap.
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
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(Delta(8), ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    blocks UInt64 ALIAS toUInt64(greatest(grid_x, 0)) * toUInt64(greatest(least(grid_y, 65535), 0)) * toUInt64(greatest(least(grid_z, 65535), 0)) COMMENT 'blocks in the grid; 0 where a size is negative',
    threads_per_block UInt64 ALIAS toUInt64(greatest(block_x, 0)) * toUInt64(greatest(least(block_y, 65535), 0)) * toUInt64(greatest(least(block_z, 65535), 0)) COMMENT 'threads in a block; 0 where a size is negative',
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
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
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

-- gpu.launch.v1: what launched kernels and copies, in deep windows that ask for it.
CREATE TABLE IF NOT EXISTS {database}.launches
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start of the driver call on the host' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns UInt64 COMMENT 'length of the call; ns' CODEC(T64('bit'), ZSTD(1)),
    correlation UInt32 COMMENT 'CUPTI correlation id, that of the kernels and copies which it launched' CODEC(Delta(4), ZSTD(1)),
    thread UInt32 COMMENT 'calling thread as CUPTI names it: the low 32 bits of its pthread_t' CODEC(ZSTD(1)),
    scope LowCardinality(String) COMMENT 'NVTX ranges, steps and scopes that were open, from the outermost to the innermost, separated by ";"; empty = none' CODEC(ZSTD(1)),
    stack LowCardinality(String) COMMENT 'Python frames of the last sample before it, from the outermost to the innermost, function (file:line), separated by ";"; empty = none' CODEC(ZSTD(1)),
    caller LowCardinality(String) COMMENT 'innermost of these frames that is not of the standard library or an installed package; empty = none' CODEC(ZSTD(1)),
    sampled UInt8 COMMENT 'whose stack it is: 0 = none, 1 = the calling thread\'s, 2 = the main thread\'s, as the calling one runs no Python' CODEC(ZSTD(1)),
    sample_age_ns Nullable(Int64) COMMENT 'time from the sample to the call; ns, NULL = no sample' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    at String ALIAS if(caller != '', caller, arrayElement(splitByChar(';', stack), -1)) COMMENT 'caller, or the innermost frame where there is none',
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'calls that launched kernels and copies, in deep windows that record launches; joined to kernels by process_id and correlation';

-- gpu.stall.v1: what the warps of kernels waited for, in deep windows that ask for it.
CREATE TABLE IF NOT EXISTS {database}.stalls
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'begin of the time in which the samples came' CODEC(Delta(8), ZSTD(1)),
    duration_ns UInt64 COMMENT 'length of that time; ns' CODEC(T64, ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel, named as in kernels; empty = none of the program' CODEC(ZSTD(1)),
    reason LowCardinality(String) COMMENT 'what its warps waited for, "selected" = nothing; without a kernel why there is none' CODEC(ZSTD(1)),
    samples UInt64 COMMENT 'samples of its warps with this reason' CODEC(T64, ZSTD(1)),
    not_issued UInt64 COMMENT 'of them, those in which the scheduler issued no instruction of any warp' CODEC(T64, ZSTD(1)),
    cycles UInt32 COMMENT 'cycles of an SM between two samples' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
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
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'what the warps of kernels waited for, by samples of the GPU, in deep windows with pc; joined to kernels by process_id and name';

-- gpu.collective.v1: collectives of one rank on one communicator, from CUPTI or from NCCL's profiler interface alone.
CREATE TABLE IF NOT EXISTS {database}.collectives
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits; the same on all its ranks. Starts with ~ where it is only guessed, from stream and operation (NCCL without payloads)' CODEC(ZSTD(1)),
    source LowCardinality(String) DEFAULT 'cupti' COMMENT 'what measured the rows: cupti, or nccl (NCCL\'s profiler interface, without other kernels)' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'operation: AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Send, Recv, SendRecv, AllToAll, Gather, Scatter; empty = unknown' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'message size; bytes' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number; -1 = outside any step' CODEC(Delta(8), ZSTD(1)),
    ordinal Int32 COMMENT '0, 1, 2, ... per (communicator, step), in launch order' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'duration of the NCCL kernel; ns' CODEC(T64, ZSTD(1)),
    covered_ns Int64 COMMENT 'part of the duration in which other kernels or copies of the same rank ran; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
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
    source LowCardinality(String) DEFAULT 'cupti' COMMENT 'what measured the rows: cupti, or nccl (NCCL\'s profiler interface, without kernels and copies)' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number' CODEC(Delta(8), ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start of the step on the host (marker)' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'length of the step on the host, which runs ahead of the GPU; ns. The length of the step is gpu_duration_ns' CODEC(T64, ZSTD(1)),
    gpu_start DateTime64(9, 'UTC') COMMENT 'start of the budget interval: end of the previous step\'s last collective on this GPU, or the host start' CODEC(Delta(8), T64, ZSTD(1)),
    gpu_duration_ns Int64 COMMENT 'length of the budget interval, on the GPU: the length of the step; ns, 0 = not known. compute + copy + comm_exposed + idle add up to it' CODEC(T64, ZSTD(1)),
    compute_ns Int64 COMMENT 'union of the kernels that are not communication; ns' CODEC(T64, ZSTD(1)),
    compute_overlapped_ns Int64 COMMENT 'part of compute_ns in which communication kernels ran too; ns' CODEC(T64, ZSTD(1)),
    copy_ns Int64 COMMENT 'union of copies between host and device that no kernel but communication covers; ns' CODEC(T64, ZSTD(1)),
    copy_total_ns Int64 COMMENT 'union of copies between host and device; ns' CODEC(T64, ZSTD(1)),
    copy_pageable_ns Nullable(Int64) COMMENT 'part of copy_total_ns from or to pageable host memory; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    comm_ns Int64 COMMENT 'union of the communication kernels; ns' CODEC(T64, ZSTD(1)),
    comm_exposed_ns Int64 COMMENT 'part of comm_ns covered by neither compute nor copies; ns' CODEC(T64, ZSTD(1)),
    idle_ns Int64 COMMENT 'nothing ran on the GPU; ns' CODEC(T64, ZSTD(1)),
    launch_late_ns Nullable(Int64) COMMENT 'not filled; NULL' CODEC(T64, ZSTD(1)),
    sync_ns Nullable(Int64) COMMENT 'host time in torch.cuda.synchronize and Tensor.item, while CUPTI is attached; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    input_ns Nullable(Int64) COMMENT 'part of idle in a data-loading range; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    load_ns Nullable(Int64) COMMENT 'host time in the iterator of a DataLoader, main thread; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    gc_ns Nullable(Int64) COMMENT 'host time in which Python collected garbage; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    checkpoint_ns Nullable(Int64) COMMENT 'host time in torch.save and torch.distributed.checkpoint, main thread; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    kernels Int64 COMMENT 'kernels that are not communication' CODEC(ZSTD(1)),
    blocks Int64 COMMENT 'sum of grid sizes of those kernels; blocks' CODEC(ZSTD(1)),
    collectives Int64 COMMENT 'communication kernels' CODEC(ZSTD(1)),
    skipped UInt8 COMMENT '1 = the budget of this step is not known (a record of one of its collectives was lost): not comparable' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end of its code on the host',
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
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
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
    throttle_reasons Nullable(Int64) COMMENT 'NVML clock event reasons, bits from 0x1: idle, application clocks, power cap, HW slowdown, sync boost, SW thermal, HW thermal, HW power brake, display clocks; NULL = not supported' CODEC(T64, ZSTD(1)),
    pcie_rx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    pcie_tx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_rx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_tx_kbps Nullable(Int64) COMMENT 'kB/s; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_uncorrected Nullable(Int64) COMMENT 'errors; NULL = not supported' CODEC(T64, ZSTD(1)),
    xid Nullable(Int64) COMMENT 'last XID since the previous sample, 0 = none; NULL = not supported' CODEC(T64, ZSTD(1)),
    fan Nullable(Int64) COMMENT '%; NULL = not supported' CODEC(T64, ZSTD(1)),
    processes Nullable(Int64) COMMENT 'compute processes on the GPU; NULL = not supported' CODEC(T64, ZSTD(1)),
    parent_uuid LowCardinality(String) COMMENT 'of a MIG instance: NVML UUID of its GPU' CODEC(ZSTD(1)),
    gpu_instance Int32 DEFAULT -1 COMMENT 'of a MIG instance: number of its GPU instance; -1 = a whole GPU' CODEC(ZSTD(1)),
    memory_temperature Nullable(Int64) COMMENT 'temperature of the memory (HBM); degrees Celsius; NULL = not supported' CODEC(T64, ZSTD(1)),
    util_encoder Nullable(Int64) COMMENT 'video encoder busy; %; NULL = not supported' CODEC(T64, ZSTD(1)),
    util_decoder Nullable(Int64) COMMENT 'video decoder busy; %; NULL = not supported' CODEC(T64, ZSTD(1)),
    pcie_replays Nullable(Int64) COMMENT 'PCIe packets sent again since the driver was loaded; NULL = not supported' CODEC(T64, ZSTD(1)),
    remapped_correctable Nullable(Int64) COMMENT 'memory rows remapped after correctable errors, in the GPU\'s life; NULL = not supported' CODEC(T64, ZSTD(1)),
    remapped_uncorrectable Nullable(Int64) COMMENT 'memory rows remapped after uncorrectable errors, in the GPU\'s life; NULL = not supported' CODEC(T64, ZSTD(1)),
    remap_pending Nullable(Int64) COMMENT '1 = a row is remapped at the next reset; NULL = not supported' CODEC(T64, ZSTD(1)),
    remap_failure Nullable(Int64) COMMENT '1 = remapping a row failed: the GPU is to be replaced; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_corrected Nullable(Int64) COMMENT 'corrected errors since the driver was loaded; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_aggregate_corrected Nullable(Int64) COMMENT 'corrected errors in the GPU\'s life; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_aggregate_uncorrected Nullable(Int64) COMMENT 'uncorrected errors in the GPU\'s life; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_dram_corrected Nullable(Int64) COMMENT 'corrected errors of the device memory since the driver was loaded; NULL = not supported' CODEC(T64, ZSTD(1)),
    ecc_dram_uncorrected Nullable(Int64) COMMENT 'uncorrected errors of the device memory since the driver was loaded; NULL = not supported' CODEC(T64, ZSTD(1)),
    retired_pages_corrected Nullable(Int64) COMMENT 'memory pages retired after corrected errors; NULL = not supported' CODEC(T64, ZSTD(1)),
    retired_pages_uncorrected Nullable(Int64) COMMENT 'memory pages retired after uncorrected errors; NULL = not supported' CODEC(T64, ZSTD(1)),
    retired_pages_pending Nullable(Int64) COMMENT '1 = a page is retired at the next reset; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_links Nullable(Int64) COMMENT 'NVLink links that the GPU has; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_active Nullable(Int64) COMMENT 'NVLink links that are up; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_crc_errors Nullable(Int64) COMMENT 'CRC errors of all links; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_replays Nullable(Int64) COMMENT 'packets of all links sent again; NULL = not supported' CODEC(T64, ZSTD(1)),
    nvlink_recoveries Nullable(Int64) COMMENT 'recoveries of all links; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_power_ns Nullable(Int64) COMMENT 'time below the wanted clocks because of power, since the driver was loaded; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_thermal_ns Nullable(Int64) COMMENT 'the same because of heat; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_sync_boost_ns Nullable(Int64) COMMENT 'the same because of the sync boost group; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_board_ns Nullable(Int64) COMMENT 'the same because of the board\'s limits; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_low_use_ns Nullable(Int64) COMMENT 'the same because of low utilisation; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    violation_reliability_ns Nullable(Int64) COMMENT 'the same because of reliability; ns; NULL = not supported' CODEC(T64, ZSTD(1)),
    fabric_state Nullable(Int64) COMMENT 'registration with the NVLink fabric: 1 not started, 2 under way, 3 complete; NULL = not supported' CODEC(T64, ZSTD(1)),
    vgpu_license Nullable(Int64) COMMENT '1 = the vGPU has its license, 0 = it has none; NULL = no vGPU' CODEC(T64, ZSTD(1)),
    recovery_action Nullable(Int64) COMMENT 'what NVML wants done: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset; NULL = not supported' CODEC(T64, ZSTD(1)),
    sm_active Nullable(Float64) COMMENT 'SMs with at least one warp, mean since the last sample (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    sm_occupancy Nullable(Float64) COMMENT 'resident warps of all that fit, mean since the last sample (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    tensor_active Nullable(Float64) COMMENT 'tensor cores busy, any type (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    tensor_half_active Nullable(Float64) COMMENT 'tensor cores busy with 16-bit and 8-bit floats, HMMA (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    tensor_double_active Nullable(Float64) COMMENT 'tensor cores busy with doubles, DFMA (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    tensor_integer_active Nullable(Float64) COMMENT 'tensor cores busy with integers, IMMA (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    dram_active Nullable(Float64) COMMENT 'bandwidth of the device memory in use, of its peak (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    fp64_active Nullable(Float64) COMMENT 'SMs busy with doubles outside tensor cores (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    fp32_active Nullable(Float64) COMMENT 'SMs busy with 32-bit floats outside tensor cores (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    fp16_active Nullable(Float64) COMMENT 'SMs busy with 16-bit floats outside tensor cores (GPM); %; NULL = not supported' CODEC(ZSTD(1)),
    job_memory Nullable(Int64) COMMENT 'memory that the job\'s processes hold on the GPU; bytes; NULL = not known' CODEC(T64, ZSTD(1)),
    job_util_sm Nullable(Int64) COMMENT 'SM time of the job\'s processes, where several share the GPU; %; NULL = not known' CODEC(T64, ZSTD(1)),
    lost Nullable(Int64) COMMENT '1 = the GPU does not answer, its readings are missing; NULL = not known' CODEC(T64, ZSTD(1)),
    power_limit_mw Nullable(Int64) COMMENT 'power that the GPU may draw, the lowest limit in force; mW; NULL = not supported' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
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

-- gpu.host.v1: what the host of a rank did, by samples of its process from /proc.
CREATE TABLE IF NOT EXISTS {database}.host_samples
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    pid Int32 COMMENT 'process id, as the agent\'s pid namespace numbers it' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'end of the interval' CODEC(Delta(8), T64, ZSTD(1)),
    interval_ns Int64 COMMENT 'length of the interval that all counts are of; ns' CODEC(T64, ZSTD(1)),
    main_cpu_ns Nullable(Int64) COMMENT 'CPU time of the main thread; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    main_wait_ns Nullable(Int64) COMMENT 'time in which the main thread could run and had no CPU; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    main_blocked_ns Nullable(Int64) COMMENT 'time of the main thread in uninterruptible sleep, mostly disk, from 20 looks a second; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    block_io_ns Nullable(Int64) COMMENT 'time of the main thread waiting for block I/O; ns, NULL = the kernel\'s delay accounting is off' CODEC(T64, ZSTD(1)),
    main_switches Nullable(Int64) COMMENT 'voluntary context switches of the main thread; NULL = unknown' CODEC(T64, ZSTD(1)),
    main_preempted Nullable(Int64) COMMENT 'involuntary context switches of the main thread; NULL = unknown' CODEC(T64, ZSTD(1)),
    other_cpu_ns Nullable(Int64) COMMENT 'CPU time of all other threads; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    other_wait_ns Nullable(Int64) COMMENT 'time in which they could run and had no CPU, sum; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    most_wait_ns Nullable(Int64) COMMENT 'the same of the one that waited longest; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    threads Nullable(Int64) COMMENT 'threads; NULL = unknown' CODEC(T64, ZSTD(1)),
    major_faults Nullable(Int64) COMMENT 'page faults that read from disk, of all threads; NULL = unknown' CODEC(T64, ZSTD(1)),
    rss_bytes Nullable(Int64) COMMENT 'resident memory; bytes, NULL = unknown' CODEC(T64, ZSTD(1)),
    throttled_ns Nullable(Int64) COMMENT 'time in which the process\'s cgroup was throttled, sum over CPUs; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    cpu_pressure_ns Nullable(Int64) COMMENT 'time in which some task of the cgroup waited for a CPU; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    io_pressure_ns Nullable(Int64) COMMENT 'the same for I/O; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    memory_pressure_ns Nullable(Int64) COMMENT 'the same for memory; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    host_cpu_pressure_ns Nullable(Int64) COMMENT 'time in which some task of the host waited for a CPU; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    host_io_pressure_ns Nullable(Int64) COMMENT 'the same for I/O; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    host_memory_pressure_ns Nullable(Int64) COMMENT 'the same for memory; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    main_gil_ns Nullable(Int64) COMMENT 'time in which the main thread waited for Python\'s GIL, which another thread had, from 20 polls a second; ns, NULL = unknown' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (job, rank, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'samples of recorded processes from /proc; counts are of the interval before';

-- gpu.network.v1: links of hosts, from sysfs.
CREATE TABLE IF NOT EXISTS {database}.network_samples
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'end of the interval' CODEC(Delta(8), T64, ZSTD(1)),
    interval_ns Int64 COMMENT 'length of the interval that all counts are of; ns' CODEC(T64, ZSTD(1)),
    device LowCardinality(String) COMMENT 'name of the port or interface, mlx5_0/1 or eth0' CODEC(ZSTD(1)),
    link LowCardinality(String) COMMENT 'infiniband, roce or ethernet' CODEC(ZSTD(1)),
    state LowCardinality(String) COMMENT 'up or down' CODEC(ZSTD(1)),
    speed_mbps Nullable(Int64) COMMENT 'speed of the link; Mbit/s, NULL = it is down, or not known' CODEC(T64, ZSTD(1)),
    expected_mbps Nullable(Int64) COMMENT 'speed that it should have; Mbit/s, NULL = not known' CODEC(T64, ZSTD(1)),
    is_down Nullable(Int64) COMMENT '1 = it was up before, and is down; 0 = it is up, or was never' CODEC(T64, ZSTD(1)),
    reason LowCardinality(String) COMMENT 'what is wrong with it, a sentence; empty = nothing' CODEC(ZSTD(1)),
    rx_bytes Nullable(Int64) COMMENT 'bytes received; NULL = not known' CODEC(T64, ZSTD(1)),
    tx_bytes Nullable(Int64) COMMENT 'bytes sent; NULL = not known' CODEC(T64, ZSTD(1)),
    rx_errors Nullable(Int64) COMMENT 'packets received with an error; NULL = not known' CODEC(T64, ZSTD(1)),
    tx_errors Nullable(Int64) COMMENT 'packets that could not be sent for an error; NULL = not known' CODEC(T64, ZSTD(1)),
    rx_discards Nullable(Int64) COMMENT 'packets received and discarded; NULL = not known' CODEC(T64, ZSTD(1)),
    tx_discards Nullable(Int64) COMMENT 'packets to send that were discarded; NULL = not known' CODEC(T64, ZSTD(1)),
    symbol_errors Nullable(Int64) COMMENT 'symbol errors; of Ethernet packets with a wrong checksum; NULL = not known' CODEC(T64, ZSTD(1)),
    integrity_errors Nullable(Int64) COMMENT 'bursts of errors and overrun buffers, by which the link comes close to going down; NULL = not known' CODEC(T64, ZSTD(1)),
    link_downs Nullable(Int64) COMMENT 'times that the link went down; NULL = not known' CODEC(T64, ZSTD(1)),
    recoveries Nullable(Int64) COMMENT 'times that the link was trained again; NULL = not known' CODEC(T64, ZSTD(1)),
    transmit_waits Nullable(Int64) COMMENT 'ticks in which there was something to send and no credit: congestion; NULL = not known' CODEC(T64, ZSTD(1)),
    sequence_errors Nullable(Int64) COMMENT 'packets that came out of their sequence or were missing; NULL = not known' CODEC(T64, ZSTD(1)),
    timeouts Nullable(Int64) COMMENT 'packets that were not acknowledged in time; NULL = not known' CODEC(T64, ZSTD(1)),
    congestion_marks Nullable(Int64) COMMENT 'packets that a switch marked as congested; NULL = not known' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (host, device, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'samples of InfiniBand, RoCE and Ethernet links of a host; counts are of the interval before';

-- gpu.check.v1: health checks of hosts.
CREATE TABLE IF NOT EXISTS {database}.checks
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host; -1 = the host' CODEC(ZSTD(1)),
    serial LowCardinality(String) COMMENT 'serial number of its board; empty = not known' CODEC(ZSTD(1)),
    model LowCardinality(String) COMMENT 'its model' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'when the host was checked' CODEC(Delta(8), T64, ZSTD(1)),
    name LowCardinality(String) COMMENT 'what was checked' CODEC(ZSTD(1)),
    state LowCardinality(String) COMMENT 'ok, warn, fail or skipped' CODEC(ZSTD(1)),
    text String COMMENT 'what was seen, a sentence' CODEC(ZSTD(1)),
    measured Nullable(Float64) COMMENT 'number that was measured; NULL = none' CODEC(ZSTD(1)),
    expected Nullable(Float64) COMMENT 'number that it should reach; NULL = none' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (host, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'results of the health checks of hosts and their GPUs';

-- gpu.stack.v1: Python stacks of ranks that a verdict named, and of one peer each.
CREATE TABLE IF NOT EXISTS {database}.stacks
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time, of the agent' CODEC(ZSTD(1)),
    sampled_process LowCardinality(String) COMMENT 'process id of the sampled process, as in processes' CODEC(ZSTD(1)),
    pid Int32 COMMENT 'its process id on its host' CODEC(ZSTD(1)),
    verdict LowCardinality(String) COMMENT 'what asked for the sampling: straggler, or hang' CODEC(ZSTD(1)),
    role LowCardinality(String) COMMENT 'culprit = the verdict names this rank; peer = a rank that it does not name, for comparison' CODEC(ZSTD(1)),
    named_rank Int32 COMMENT 'rank that the verdict names; for a culprit its own' CODEC(ZSTD(1)),
    first_step Int64 COMMENT 'first step of the verdict\'s window; -1 = none' CODEC(ZSTD(1)),
    last_step Int64 COMMENT 'last step of the verdict\'s window; -1 = none' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'start of the verdict\'s window, or of the standstill' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'start of the sampling' CODEC(ZSTD(1)),
    duration_ns Int64 COMMENT 'length of the sampling; ns' CODEC(ZSTD(1)),
    samples_total Int32 COMMENT 'times that the stacks of the process were read' CODEC(ZSTD(1)),
    gil_polls Int32 COMMENT 'times that the main thread\'s system call was read; 0 = it may not be read' CODEC(ZSTD(1)),
    gil_waiting Int32 COMMENT 'of these, times that it waited for the GIL' CODEC(ZSTD(1)),
    stacks_left_out Int32 COMMENT 'distinct stacks beyond the bound of a record' CODEC(ZSTD(1)),
    thread LowCardinality(String) COMMENT 'name of the thread' CODEC(ZSTD(1)),
    thread_id Int32 COMMENT 'its id on the host' CODEC(ZSTD(1)),
    is_main UInt8 COMMENT '1 = main thread' CODEC(ZSTD(1)),
    samples Int32 COMMENT 'samples with this stack in this thread' CODEC(ZSTD(1)),
    gil_samples Int32 COMMENT 'of as many samples more, taken at the same time: those in which it held the GIL' CODEC(ZSTD(1)),
    stack String COMMENT 'frames from the outermost to the innermost, function (file:line), separated by ";"; at most 64, the innermost' CODEC(ZSTD(1)),
    function LowCardinality(String) COMMENT 'function of the innermost frame' CODEC(ZSTD(1)),
    file LowCardinality(String) COMMENT 'its file' CODEC(ZSTD(1)),
    line Int32 COMMENT 'its line' CODEC(ZSTD(1)),
    caller LowCardinality(String) COMMENT 'innermost frame that is not of the standard library or an installed package; empty = none' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(Delta(8), ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    at String ALIAS if(caller != '', caller, concat(function, ' (', file, ':', toString(line), ')')) COMMENT 'caller, or the innermost frame where there is none',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (job, rank, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'Python stacks of ranks that a verdict named, and of one peer each; a row a distinct stack of a thread';
