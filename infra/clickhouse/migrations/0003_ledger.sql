-- One row per Kafka record, or per part of one that holds several batches: what became of it. Written under the range's token
-- after the rows, so every row in it is true. `rows` is what the record holds; rows are in the topic's table exactly when
-- disposition = 'stored'. No partition key but the topic: a range's ledger rows are one part, written whole or not at all.
-- content: a repetition is a duplicate only if its content is the one that is stored, as whoever knows a process id may
-- publish its sequences. epoch: a stream worker that was halted may publish results after another worker has its partition;
-- a result with a lower epoch than an earlier one of the same source is fenced. late_rows: so far, as the worker reports.
CREATE TABLE IF NOT EXISTS {database}.ledger
(
    topic LowCardinality(String) COMMENT 'Kafka topic' CODEC(ZSTD(1)),
    topic_id LowCardinality(String) COMMENT 'id of the topic; a recreated topic has another one' CODEC(ZSTD(1)),
    partition UInt32 COMMENT 'Kafka partition' CODEC(ZSTD(1)),
    offset UInt64 COMMENT 'Kafka offset' CODEC(DoubleDelta, ZSTD(1)),
    part UInt8 COMMENT 'number of the batch in a record that holds several, from 1; 0 = the record is one batch' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    disposition LowCardinality(String) COMMENT 'stored, empty, duplicate (stored already from another offset), fenced (by a worker that had lost its partition), expired (older than its table keeps rows when it came), dead_letter, forgotten (drumline forget deleted its rows, and its names here)' CODEC(ZSTD(1)),
    error LowCardinality(String) COMMENT 'type of the error of a dead letter' CODEC(ZSTD(1)),
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank of the process that sent the record; -1 = the record is about a whole job or none, or cannot be read' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host of that process; empty where there is none' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'whose sequence it is: a process of the job, or for what is found out about a whole job the stream worker' CODEC(ZSTD(1)),
    key String COMMENT 'key of the record' CODEC(ZSTD(1)),
    sequence Int64 COMMENT 'counts 0, 1, 2, ... per (process, topic, key)' CODEC(Delta(8), ZSTD(1)),
    dropped_before Int64 COMMENT 'rows lost between the previous batch of this sequence and this one' CODEC(ZSTD(1)),
    rows UInt32 COMMENT 'rows that the record holds' CODEC(T64, ZSTD(1)),
    late_rows Int64 COMMENT 'rows of this process that came too late for any window, so far' CODEC(ZSTD(1)),
    time_min DateTime64(9, 'UTC') COMMENT 'earliest time of its rows' CODEC(Delta(8), ZSTD(1)),
    time_max DateTime64(9, 'UTC') COMMENT 'latest time of its rows' CODEC(Delta(8), ZSTD(1)),
    sent_ns Int64 COMMENT 'producer\'s clock when the batch was closed; ns since the epoch' CODEC(Delta(8), ZSTD(1)),
    bytes UInt32 COMMENT 'size of the record; bytes' CODEC(T64, ZSTD(1)),
    content UInt64 COMMENT 'hash of the record without its schema id; 0 = none: no rows, or rows that replace each other',
    source LowCardinality(String) COMMENT 'of a result: the changelog partition of the stream worker that published it',
    epoch Int64 COMMENT 'of a result: rises with every worker that takes over the source; 0 = not known',
    range_first UInt64 COMMENT 'first offset of the insert that stored it' CODEC(ZSTD(1)),
    range_last UInt64 COMMENT 'last offset of that insert' CODEC(ZSTD(1)),
    INDEX by_process process_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY topic
ORDER BY (topic, topic_id, partition, offset)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'what became of each Kafka record';

-- One row for each run of `drumline forget` that had rows or keys to delete, written before it does: proof of it, without the data.
CREATE TABLE IF NOT EXISTS {database}.forgotten_jobs
(
    job String COMMENT 'job whose data was deleted' CODEC(ZSTD(1)),
    time DateTime64(6, 'UTC') COMMENT 'when that was' CODEC(ZSTD(1)),
    forgotten_by String COMMENT 'user and host that deleted it' CODEC(ZSTD(1)),
    rows UInt64 COMMENT 'rows that were deleted, of all tables' CODEC(ZSTD(1)),
    records UInt64 COMMENT 'records of the ledger that name it no more' CODEC(ZSTD(1)),
    deleted Map(String, UInt64) COMMENT 'rows by table; keys in Kafka by kind' CODEC(ZSTD(1))
)
ENGINE = MergeTree
ORDER BY (job, time)
SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'jobs whose data was deleted: who did it, when, and how much';

-- Policies and windows in force when `drumline backup create` ran: what a restore writes to Kafka again.
CREATE TABLE IF NOT EXISTS {database}.control_records
(
    key String COMMENT 'name of the request' CODEC(ZSTD(1)),
    request String COMMENT 'the request, JSON' CODEC(ZSTD(1)),
    time DateTime64(3, 'UTC') COMMENT 'when it was backed up' CODEC(ZSTD(1))
)
ENGINE = MergeTree
ORDER BY key
SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'policies and deep windows in force at the last backup';
