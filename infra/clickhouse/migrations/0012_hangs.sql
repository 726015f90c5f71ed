-- How far each rank is in NCCL, and which jobs stand still.

-- gpu.progress.v1: how far each rank is in its NCCL communicators, the newest only; of a peer whose row is older than the others nothing is open any more.
CREATE TABLE IF NOT EXISTS {database}.progress_versions
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
    peer Int32 COMMENT '-1 = collectives; else a send to, or a receive from, this rank of the communicator that has not ended' CODEC(ZSTD(1)),
    called Int64 COMMENT 'collectives called so far' CODEC(T64, ZSTD(1)),
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1' CODEC(T64, ZSTD(1)),
    ended Int64 COMMENT 'collectives that ended, without a gap' CODEC(T64, ZSTD(1)),
    exact UInt8 COMMENT '1 = the three counts hold all collectives of the communicator; 0 = some were not recorded' CODEC(ZSTD(1)),
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
ORDER BY (job, run, rank, process_id, communicator, peer)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
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
    peer Int32 COMMENT '-1 = collectives; else a send to, or a receive from, this rank of the communicator that has not ended',
    called Int64 COMMENT 'collectives called so far',
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1',
    ended Int64 COMMENT 'collectives that ended, without a gap',
    exact UInt8 COMMENT '1 = the three counts hold all collectives of the communicator; 0 = some were not recorded',
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

-- gpu.hang.v1: jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes.
CREATE TABLE IF NOT EXISTS {database}.hangs_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...' CODEC(T64, ZSTD(1)),
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts' CODEC(T64, ZSTD(1)),
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved' CODEC(Delta(8), ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'when this was found out' CODEC(Delta(8), ZSTD(1)),
    ranks_seen Int32 COMMENT 'ranks whose progress is known' CODEC(ZSTD(1)),
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over' CODEC(ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'operation in which ranks wait; of a mismatch and a deadlock the rank\'s own' CODEC(ZSTD(1)),
    datatype LowCardinality(String) COMMENT 'its type of elements' CODEC(ZSTD(1)),
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known' CODEC(T64, ZSTD(1)),
    elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    bytes Int64 COMMENT 'its size; bytes' CODEC(T64, ZSTD(1)),
    waiting Int32 COMMENT 'ranks that wait in it' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step of the rank; -1 = none' CODEC(Delta(8), ZSTD(1)),
    note String COMMENT 'what is known of it, a sentence' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, episode, revision, rank)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes';

CREATE OR REPLACE VIEW {database}.hangs
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements',
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known',
    elements Int64 COMMENT 'its number of elements',
    bytes Int64 COMMENT 'its size; bytes',
    waiting Int32 COMMENT 'ranks that wait in it',
    step Int64 COMMENT 'step of the rank; -1 = none',
    note String COMMENT 'what is known of it, a sentence',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.hangs_versions FINAL
COMMENT 'jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes';

CREATE OR REPLACE VIEW {database}.hangs_now
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements',
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known',
    elements Int64 COMMENT 'its number of elements',
    bytes Int64 COMMENT 'its size; bytes',
    waiting Int32 COMMENT 'ranks that wait in it',
    step Int64 COMMENT 'step of the rank; -1 = none',
    note String COMMENT 'what is known of it, a sentence',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.hangs_versions FINAL WHERE (job, run, episode, revision) IN (
    SELECT h.job, h.run, max((h.time, h.episode, h.revision)).2, max((h.time, h.episode, h.revision)).3
    FROM {database}.hangs_versions AS h GROUP BY h.job, h.run)
COMMENT 'the newest state of each run in hangs';
