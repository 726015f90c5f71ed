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
