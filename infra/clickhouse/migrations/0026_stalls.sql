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
