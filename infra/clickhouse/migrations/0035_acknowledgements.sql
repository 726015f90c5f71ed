-- Findings of `drumline audit` that cannot be fixed, acknowledged by a person; a withdrawal is a newer version.
CREATE TABLE IF NOT EXISTS {database}.acknowledgements_versions
(
    id String COMMENT 'of the finding: kind, place and text' CODEC(ZSTD(1)),
    kind LowCardinality(String) COMMENT 'kind of the finding' CODEC(ZSTD(1)),
    place String COMMENT 'topic, partition, table or process that it is about' CODEC(ZSTD(1)),
    text String COMMENT 'what it states; another number is another finding' CODEC(ZSTD(1)),
    reason String COMMENT 'why nothing is left to do' CODEC(ZSTD(1)),
    decided_by String COMMENT 'user and host that acknowledged it, or withdrew that' CODEC(ZSTD(1)),
    time DateTime64(6, 'UTC') COMMENT 'when that was' CODEC(ZSTD(1)),
    withdrawn UInt8 COMMENT '1 = it counts again' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(time)
ORDER BY id
SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'findings of the audit that were acknowledged';

CREATE OR REPLACE VIEW {database}.acknowledgements
(
    id String COMMENT 'of the finding: kind, place and text',
    kind LowCardinality(String) COMMENT 'kind of the finding',
    place String COMMENT 'topic, partition, table or process that it is about',
    text String COMMENT 'what it states; another number is another finding',
    reason String COMMENT 'why nothing is left to do',
    decided_by String COMMENT 'user and host that acknowledged it, or withdrew that',
    time DateTime64(6, 'UTC') COMMENT 'when that was',
    withdrawn UInt8 COMMENT '1 = it counts again'
)
AS SELECT * FROM {database}.acknowledgements_versions FINAL
COMMENT 'findings of the audit that were acknowledged';
