-- What the host of a late rank did: samples of its process from /proc, and sums of host time by step.
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

ALTER TABLE {database}.steps ADD COLUMN IF NOT EXISTS
    load_ns Nullable(Int64) COMMENT 'host time in the iterator of a DataLoader, main thread; ns, NULL = unknown' CODEC(T64, ZSTD(1))
    AFTER input_ns;
ALTER TABLE {database}.steps ADD COLUMN IF NOT EXISTS
    gc_ns Nullable(Int64) COMMENT 'host time in which Python collected garbage; ns, NULL = unknown' CODEC(T64, ZSTD(1))
    AFTER load_ns;
ALTER TABLE {database}.steps ADD COLUMN IF NOT EXISTS
    checkpoint_ns Nullable(Int64) COMMENT 'host time in torch.save and torch.distributed.checkpoint, main thread; ns, NULL = unknown' CODEC(T64, ZSTD(1))
    AFTER gc_ns;
ALTER TABLE {database}.steps COMMENT COLUMN IF EXISTS
    sync_ns 'host time in torch.cuda.synchronize and Tensor.item, while CUPTI is attached; ns, NULL = unknown';
ALTER TABLE {database}.steps COMMENT COLUMN IF EXISTS
    launch_late_ns 'not filled any more; NULL';
