-- What `drumline compact` keeps of ledger rows whose records Kafka has removed: a row for each run of consecutive
-- sequences of one process, key and hour. Offset and number of rows of each record stay; contents do not.
CREATE TABLE IF NOT EXISTS {database}.ledger_runs
(
    topic LowCardinality(String) COMMENT 'Kafka topic' CODEC(ZSTD(1)),
    topic_id LowCardinality(String) COMMENT 'id of the topic; a recreated topic has another one' CODEC(ZSTD(1)),
    partition UInt32 COMMENT 'Kafka partition' CODEC(ZSTD(1)),
    disposition LowCardinality(String) COMMENT 'stored or empty; ledger rows with another one are not compacted' CODEC(ZSTD(1)),
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank of the process that sent the records; -1 = they are about a whole job or none' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host of that process; empty where there is none' CODEC(ZSTD(1)),
    process_id String COMMENT 'whose sequence it is' CODEC(ZSTD(1)),
    key String COMMENT 'key of the records' CODEC(ZSTD(1)),
    first_sequence Int64 COMMENT 'sequence of the first record; the others follow without a gap' CODEC(ZSTD(1)),
    records UInt32 COMMENT 'records of the run' CODEC(T64, ZSTD(1)),
    first_offset UInt64 COMMENT 'lowest Kafka offset' CODEC(ZSTD(1)),
    offsets Array(UInt32) COMMENT 'offset of each record, from `first_offset` on' CODEC(Delta(4), ZSTD(1)),
    rows Array(UInt32) COMMENT 'rows that each record holds' CODEC(T64, ZSTD(1)),
    dropped_before Int64 COMMENT 'rows lost before these records, sum' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'size of the records, sum; bytes' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the first of them' CODEC(Delta(8), ZSTD(1)),
    time_min DateTime64(9, 'UTC') COMMENT 'earliest time of their rows' CODEC(Delta(8), ZSTD(1)),
    time_max DateTime64(9, 'UTC') COMMENT 'latest time of their rows' CODEC(Delta(8), ZSTD(1)),
    slice_first UInt64 COMMENT 'first offset of what was compacted together' CODEC(ZSTD(1)),
    slice_last UInt64 COMMENT 'last offset of it' CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY topic
ORDER BY (topic, process_id, key, first_sequence)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'runs of Kafka records that are no rows of the ledger any more';

-- The ledger with the records of runs. Of those `published` and the times are the run's, `content` is not known, and
-- `sent_ns` only tells records apart.
CREATE OR REPLACE VIEW {database}.ledger_records
(
    topic LowCardinality(String) COMMENT 'Kafka topic',
    topic_id LowCardinality(String) COMMENT 'id of the topic; a recreated topic has another one',
    partition UInt32 COMMENT 'Kafka partition',
    offset UInt64 COMMENT 'Kafka offset',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record; of a run: its first one, in the same hour',
    disposition LowCardinality(String) COMMENT 'stored, empty, duplicate, fenced, dead_letter',
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank of the process that sent the record; -1 = the record is about a whole job or none',
    host LowCardinality(String) COMMENT 'host of that process; empty where there is none',
    process_id String COMMENT 'whose sequence it is',
    key String COMMENT 'key of the record',
    sequence Int64 COMMENT 'counts 0, 1, 2, ... per (process, topic, key)',
    dropped_before Int64 COMMENT 'rows lost before this record; of a run: all, with its first one',
    rows UInt32 COMMENT 'rows that the record holds',
    late_rows Int64 COMMENT 'rows of this process that came too late for any window, so far',
    time_min DateTime64(9, 'UTC') COMMENT 'earliest time of its rows, or of its run',
    time_max DateTime64(9, 'UTC') COMMENT 'latest time of its rows, or of its run',
    sent_ns Int64 COMMENT 'producer\'s clock when the batch was closed; ns since the epoch; of a run: any number',
    content UInt64 COMMENT 'hash of the record; 0 = not known',
    source LowCardinality(String) COMMENT 'of a result: the changelog partition of the stream worker that published it',
    epoch Int64 COMMENT 'of a result: rises with every worker that takes over the source; 0 = not known'
)
AS SELECT topic, topic_id, partition, offset, published, disposition, job, run, rank, host, toString(process_id) AS process_id, key, sequence,
    dropped_before, rows, late_rows, time_min, time_max, sent_ns, content, source, epoch
FROM {database}.ledger
UNION ALL
SELECT topic, topic_id, partition, first_offset + record.1 AS offset, published, disposition, job, run, rank, host, process_id, key,
    first_sequence + record.3 - 1 AS sequence, if(record.3 = 1, r.dropped_before, 0) AS dropped_before, record.2 AS rows, toInt64(0) AS late_rows,
    time_min, time_max, toInt64(bitShiftRight(cityHash64(topic_id, partition, first_offset + record.1), 2)) AS sent_ns, toUInt64(0) AS content,
    '' AS source, toInt64(0) AS epoch
FROM {database}.ledger_runs AS r ARRAY JOIN arrayZip(r.offsets, r.rows, arrayEnumerate(r.offsets)) AS record
COMMENT 'what became of each Kafka record, compacted or not';
