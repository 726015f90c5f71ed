-- Sends to a peer and receives from it are counted apart: a row of gpu.progress.v1 for each. Made anew with what it holds, since a
-- sorting key cannot change. As with all migrations, the sink is stopped while it runs: what it inserted meanwhile would be lost.
CREATE OR REPLACE TABLE {database}.progress_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'host time of the call of `operation`; without one, when the communicator was created' CODEC(Delta(8), ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    comm_rank Int32 COMMENT 'its own rank in the communicator' CODEC(ZSTD(1)),
    ranks Int32 COMMENT 'ranks of the communicator' CODEC(ZSTD(1)),
    peer Int32 COMMENT '-1 = collectives; else sends to, or receives from, this rank of the communicator: with one that has not ended, or all where NCCL measures a part of the steps' CODEC(ZSTD(1)),
    called Int64 COMMENT 'operations called so far: collectives, or sends or receives of the peer' CODEC(T64, ZSTD(1)),
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1' CODEC(T64, ZSTD(1)),
    ended Int64 COMMENT 'operations that ended, without a gap; those that NCCL does not measure count as ended' CODEC(T64, ZSTD(1)),
    exact UInt8 COMMENT '1 = the three counts hold all of the communicator; 0 = some were not recorded' CODEC(ZSTD(1)),
    closed UInt8 COMMENT '1 = the communicator is closed' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'the first operation that has not ended, or else the last one' CODEC(ZSTD(1)),
    datatype LowCardinality(String) COMMENT 'its type of elements' CODEC(ZSTD(1)),
    elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    bytes Int64 COMMENT 'its size on this rank; bytes' CODEC(T64, ZSTD(1)),
    last_operation LowCardinality(String) COMMENT 'the operation that ended before it' CODEC(ZSTD(1)),
    last_datatype LowCardinality(String) COMMENT 'its type of elements' CODEC(ZSTD(1)),
    last_elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    step Int64 COMMENT 'step of the process; -1 = none' CODEC(Delta(8), ZSTD(1)),
    quiet_ns Int64 COMMENT 'time since the process last called or ended an operation, opened or closed a communicator, or began a step; ns' CODEC(T64, ZSTD(1)),
    state LowCardinality(String) COMMENT 'of the process: running, stopped by a signal, killed (it ended, and not by its exit), exited' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, rank, process_id, communicator, peer, if(peer < 0, '', operation))
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
AS SELECT * FROM {database}.progress_versions
COMMENT 'how far each rank is in its NCCL communicators, the newest only; of a peer whose row is older than the others nothing is open any more';

CREATE OR REPLACE VIEW {database}.progress
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    start DateTime64(9, 'UTC') COMMENT 'host time of the call of `operation`; without one, when the communicator was created',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    comm_rank Int32 COMMENT 'its own rank in the communicator',
    ranks Int32 COMMENT 'ranks of the communicator',
    peer Int32 COMMENT '-1 = collectives; else sends to, or receives from, this rank of the communicator: with one that has not ended, or all where NCCL measures a part of the steps',
    called Int64 COMMENT 'operations called so far: collectives, or sends or receives of the peer',
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1',
    ended Int64 COMMENT 'operations that ended, without a gap; those that NCCL does not measure count as ended',
    exact UInt8 COMMENT '1 = the three counts hold all of the communicator; 0 = some were not recorded',
    closed UInt8 COMMENT '1 = the communicator is closed',
    operation LowCardinality(String) COMMENT 'the first operation that has not ended, or else the last one',
    datatype LowCardinality(String) COMMENT 'its type of elements',
    elements Int64 COMMENT 'its number of elements',
    bytes Int64 COMMENT 'its size on this rank; bytes',
    last_operation LowCardinality(String) COMMENT 'the operation that ended before it',
    last_datatype LowCardinality(String) COMMENT 'its type of elements',
    last_elements Int64 COMMENT 'its number of elements',
    step Int64 COMMENT 'step of the process; -1 = none',
    quiet_ns Int64 COMMENT 'time since the process last called or ended an operation, opened or closed a communicator, or began a step; ns',
    state LowCardinality(String) COMMENT 'of the process: running, stopped by a signal, killed (it ended, and not by its exit), exited',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.progress_versions FINAL
COMMENT 'how far each rank is in its NCCL communicators, the newest only; of a peer whose row is older than the others nothing is open any more';
