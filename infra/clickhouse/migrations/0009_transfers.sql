-- Transfers between ranks over the network, as NCCL's proxy threads and the kernel's TCP connections report them.

-- gpu.transfer.v1: what a rank sent to its peers and received from them, a row for each peer, direction, device and second.
CREATE TABLE IF NOT EXISTS {database}.transfers
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'begin of the second' CODEC(Delta(8), ZSTD(1)),
    duration_ns UInt64 COMMENT 'length of the interval, a second as a rule; ns' CODEC(T64, ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    comm_rank Int32 COMMENT 'its own rank in the communicator' CODEC(ZSTD(1)),
    ranks Int32 COMMENT 'ranks of the communicator' CODEC(ZSTD(1)),
    peer Int32 COMMENT 'rank in the communicator that it sends to, or receives from' CODEC(ZSTD(1)),
    direction LowCardinality(String) COMMENT 'send or receive' CODEC(ZSTD(1)),
    nic LowCardinality(String) COMMENT 'network device; empty = unknown' CODEC(ZSTD(1)),
    channels Int32 COMMENT 'channels with transfers in the interval' CODEC(ZSTD(1)),
    operations Int64 COMMENT 'proxy operations that were recorded: by default a part of the collectives' CODEC(T64, ZSTD(1)),
    transfers Int64 COMMENT 'their proxy steps, each one transfer' CODEC(T64, ZSTD(1)),
    bytes Int64 COMMENT 'size of these transfers; bytes' CODEC(T64, ZSTD(1)),
    gpu_wait_ns Int64 COMMENT 'time that transfers waited for the GPU, sum; ns' CODEC(T64, ZSTD(1)),
    peer_wait_ns Int64 COMMENT 'time that they waited for the peer, sum; ns' CODEC(T64, ZSTD(1)),
    network_ns Int64 COMMENT 'time that they were on the network, sum; ns' CODEC(T64, ZSTD(1)),
    flush_ns Int64 COMMENT 'time that received data needed to become visible to the GPU, sum; ns' CODEC(T64, ZSTD(1)),
    busy_ns Int64 COMMENT 'time with at least one of them on the network; ns' CODEC(T64, ZSTD(1)),
    slowest_channel Int32 COMMENT 'channel with the lowest rate; -1 = none' CODEC(ZSTD(1)),
    slowest_bytes Int64 COMMENT 'size of its transfers; bytes' CODEC(T64, ZSTD(1)),
    slowest_network_ns Int64 COMMENT 'their time on the network, sum; ns' CODEC(T64, ZSTD(1)),
    first_step Int64 COMMENT 'first step of the process in the interval; -1 = none' CODEC(Delta(8), ZSTD(1)),
    last_step Int64 COMMENT 'last step of the process in the interval; -1 = none' CODEC(Delta(8), ZSTD(1)),
    local LowCardinality(String) COMMENT 'own end of a TCP connection, address:port: the row is what the kernel counts of it, without communicator and peer (-1); empty = proxy operations' CODEC(ZSTD(1)),
    remote LowCardinality(String) COMMENT 'its other end' CODEC(ZSTD(1)),
    retransmitted Int64 DEFAULT -1 COMMENT 'bytes that the kernel sent again; -1 = unknown' CODEC(T64, ZSTD(1)),
    delivery_rate Int64 DEFAULT -1 COMMENT 'rate at which the path delivered, as the kernel measures it, bytes per second; -1 = unknown' CODEC(T64, ZSTD(1)),
    queued Int64 DEFAULT -1 COMMENT 'bytes that the sender had given to the kernel and the other end had not acknowledged, at the end of the interval; -1 = unknown' CODEC(T64, ZSTD(1)),
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
COMMENT 'transfers of ranks over the network, by communicator, peer, direction, device and second; of the collectives whose proxy operations were recorded';
