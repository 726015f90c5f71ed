-- One row per Kafka record: what became of it. Written under the range's token after the rows, so that what it says is true.
-- verdict: stored | empty | duplicate (this process, key and sequence is stored already, at another offset) | dead.
-- `rows` is what the record holds; rows are in the topic's table exactly when verdict = 'stored'. No partition key but the
-- topic: a range's ledger rows are one part, there whole or not at all. late_rows: so far, as the stream processor said.
CREATE TABLE IF NOT EXISTS {database}.ledger
(
    topic LowCardinality(String) CODEC(ZSTD(1)),
    topic_id LowCardinality(String) CODEC(ZSTD(1)),
    partition UInt32 CODEC(ZSTD(1)),
    offset UInt64 CODEC(DoubleDelta, ZSTD(1)),
    published DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    verdict LowCardinality(String) CODEC(ZSTD(1)),
    error LowCardinality(String) CODEC(ZSTD(1)),
    job LowCardinality(String) CODEC(ZSTD(1)),
    run LowCardinality(String) CODEC(ZSTD(1)),
    rank Int32 CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    process_id LowCardinality(String) CODEC(ZSTD(1)),
    key String CODEC(ZSTD(1)),
    sequence Int64 CODEC(Delta(8), ZSTD(1)),
    dropped_before Int64 CODEC(ZSTD(1)),
    rows UInt32 CODEC(T64, ZSTD(1)),
    late_rows Int64 CODEC(ZSTD(1)),
    time_min DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    time_max DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    sent_ns Int64 CODEC(Delta(8), ZSTD(1)),
    bytes UInt32 CODEC(T64, ZSTD(1)),
    range_first UInt64 CODEC(ZSTD(1)),
    range_last UInt64 CODEC(ZSTD(1)),
    INDEX by_process process_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY topic
ORDER BY (topic, topic_id, partition, offset)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1;
