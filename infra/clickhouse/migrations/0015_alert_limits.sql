-- Limits of alert rules for some jobs: `drumline limits`. Grafana's rules read them.
CREATE TABLE IF NOT EXISTS {database}.alert_limits_versions
(
    name LowCardinality(String) COMMENT 'name of the limit: `drumline limits names`' CODEC(ZSTD(1)),
    job String COMMENT 'jobs that it is for; * stands for any text' CODEC(ZSTD(1)),
    label String COMMENT 'label that these jobs have, NAME=VALUE; empty = with or without labels' CODEC(ZSTD(1)),
    value Float64 COMMENT 'the limit, in the unit of its name; inf = no alert' CODEC(ZSTD(1)),
    note String COMMENT 'why, in the words of the person that set it' CODEC(ZSTD(1)),
    changed DateTime64(3, 'UTC') COMMENT 'when it was set or cleared' CODEC(ZSTD(1)),
    cleared UInt8 COMMENT '1 = it is not in force any more' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(changed)
ORDER BY (name, job, label)
SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'limits of alert rules for some jobs';

CREATE OR REPLACE VIEW {database}.alert_limits
(
    name LowCardinality(String) COMMENT 'name of the limit: `drumline limits names`',
    job String COMMENT 'jobs that it is for; * stands for any text',
    label String COMMENT 'label that these jobs have, NAME=VALUE; empty = with or without labels',
    value Float64 COMMENT 'the limit, in the unit of its name; inf = no alert',
    note String COMMENT 'why, in the words of the person that set it',
    changed DateTime64(3, 'UTC') COMMENT 'when it was set or cleared',
    cleared UInt8 COMMENT '1 = it is not in force any more'
)
AS SELECT * FROM {database}.alert_limits_versions FINAL WHERE cleared = 0
COMMENT 'limits of alert rules for some jobs; the others have those of the rules';
