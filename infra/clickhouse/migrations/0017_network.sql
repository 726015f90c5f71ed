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
