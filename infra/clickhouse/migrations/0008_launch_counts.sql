-- Launches that are counted without records of CUPTI (policy counts).

-- gpu.launch-count.v1: how often kernels were launched and copies made, counted without records (policy counts).
CREATE TABLE IF NOT EXISTS {database}.launch_counts
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'begin of the interval' CODEC(Delta(8), ZSTD(1)),
    duration_ns UInt64 COMMENT 'length of the interval; ns' CODEC(T64, ZSTD(1)),
    kind UInt8 COMMENT '128 = kernel; copies as in memcpys, 0 = another one; 64 = memset; 129 = replay of a graph whose nodes are not known' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel, named as in kernels; empty = a copy; in brackets what has no kernel' CODEC(ZSTD(1)),
    grid_x Int32 COMMENT 'grid size x; blocks, 0 = several or none' CODEC(T64, ZSTD(1)),
    grid_y Int32 COMMENT 'grid size y; blocks, 0 = several or none' CODEC(T64, ZSTD(1)),
    grid_z Int32 COMMENT 'grid size z; blocks, 0 = several or none' CODEC(T64, ZSTD(1)),
    block_x Int32 COMMENT 'block size x; threads, 0 = several or none' CODEC(T64, ZSTD(1)),
    block_y Int32 COMMENT 'block size y; threads, 0 = several or none' CODEC(T64, ZSTD(1)),
    block_z Int32 COMMENT 'block size z; threads, 0 = several or none' CODEC(T64, ZSTD(1)),
    shared_dynamic Int32 COMMENT 'dynamic shared memory; bytes' CODEC(T64, ZSTD(1)),
    launches UInt64 COMMENT 'launches or copies that the host called in the interval, those of replayed graphs included' CODEC(T64, ZSTD(1)),
    replayed UInt64 COMMENT 'of them, those that replays of CUDA graphs made' CODEC(T64, ZSTD(1)),
    bytes UInt64 COMMENT 'sum of the sizes of copies; bytes' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 9, 10, 64, 128, 129], ['HtoD', 'DtoH', 'DtoD', 'HtoH', 'PtoP', 'memset', 'kernel', 'graph'], 'other') COMMENT 'kind as text: HtoD, DtoH, DtoD, HtoH, PtoP, memset, kernel, graph, other',
    end_time DateTime64(9, 'UTC') ALIAS addNanoseconds(start, duration_ns) COMMENT 'end',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'launches of kernels and copies by process, kernel, shape and interval, under policy counts; nothing about their times on the GPU';
