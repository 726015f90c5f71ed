-- gpu.check.v1: health checks of hosts; and the machines that fail again.
CREATE TABLE IF NOT EXISTS {database}.checks
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host; -1 = the host' CODEC(ZSTD(1)),
    serial LowCardinality(String) COMMENT 'serial number of its board; empty = not known' CODEC(ZSTD(1)),
    model LowCardinality(String) COMMENT 'its model' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'when the host was checked' CODEC(Delta(8), T64, ZSTD(1)),
    name LowCardinality(String) COMMENT 'what was checked' CODEC(ZSTD(1)),
    state LowCardinality(String) COMMENT 'ok, warn, fail or skipped' CODEC(ZSTD(1)),
    text String COMMENT 'what was seen, a sentence' CODEC(ZSTD(1)),
    measured Nullable(Float64) COMMENT 'number that was measured; NULL = none' CODEC(ZSTD(1)),
    expected Nullable(Float64) COMMENT 'number that it should reach; NULL = none' CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (host, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'results of the health checks of hosts and their GPUs';

-- Machines that fail again: faults of all jobs by GPU and host. A verdict counts if its cause is one of the machine; ranks
-- that wait for it are named by none. XIDs are those of the hardware (docs.nvidia.com/deploy/xid-errors).
CREATE OR REPLACE VIEW {database}.offenders
(
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU; empty = the host, or not known',
    serial String COMMENT 'serial number of its board; empty = no check has it',
    faulty_runs UInt64 COMMENT 'runs in which it was at fault',
    runs UInt64 COMMENT 'runs that used it; 0 = none is stored',
    verdicts UInt64 COMMENT 'runs in which a verdict (warning or worse) named it, for a cause of the machine',
    xids Array(Int64) COMMENT 'XIDs of the hardware that it reported',
    losses UInt64 COMMENT 'runs that lost it, or 1 where no job ran on it',
    failed_checks Array(String) COMMENT 'names of the health checks that failed',
    causes Array(String) COMMENT 'causes of the verdicts',
    gpu_seconds_lost Float64 COMMENT 'GPU time that the verdicts cost; s',
    first_time DateTime64(9, 'UTC') COMMENT 'first fault',
    last_time DateTime64(9, 'UTC') COMMENT 'last fault'
)
AS SELECT
    f.host AS host,
    f.gpu_uuid AS gpu_uuid,
    any(boards.serial) AS serial,
    toUInt64(uniqExactIf((f.job, f.run), f.job != '')) AS faulty_runs,
    toUInt64(any(used.runs)) AS runs,
    toUInt64(uniqExactIf((f.job, f.run), f.kind = 'verdict')) AS verdicts,
    arraySort(groupUniqArrayIf(toInt64OrZero(f.what), f.kind = 'xid')) AS xids,
    toUInt64(greatest(uniqExactIf((f.job, f.run), f.kind = 'lost' AND f.job != ''), toUInt64(countIf(f.kind = 'lost') > 0))) AS losses,
    arraySort(groupUniqArrayIf(f.what, f.kind = 'check')) AS failed_checks,
    arraySort(groupUniqArrayIf(f.what, f.kind = 'verdict')) AS causes,
    sum(f.cost) AS gpu_seconds_lost,
    min(f.since) AS first_time,
    max(f.until) AS last_time
FROM (
    SELECT toString(s.host) AS host, toString(s.gpu_uuid) AS gpu_uuid, toString(s.job) AS job, toString(s.run) AS run, 'verdict' AS kind,
        if(detail = '', toString(cause), concat(cause, ', ', detail)) AS what, min(window_start) AS since, max(window_end) AS until,
        toFloat64(sum(gpu_seconds_lost)) AS cost
    FROM {database}.stragglers AS s
    WHERE rank >= 0 AND s.gpu_uuid != '' AND severity >= 'suspect' AND state IN ('warning', 'critical') AND (cause = 'slow_gpu'
        OR (cause = 'slow_compute' AND detail IN ('throttled', 'slow_part', 'same_work'))
        OR (cause = 'slow_copy' AND detail != 'pageable')
        OR (cause = 'host_stall' AND detail IN ('disk', 'cpu_throttled', 'cpu_contention', 'page_faults')))
    GROUP BY host, gpu_uuid, job, run, what
    UNION ALL
    SELECT toString(d.host) AS host, toString(d.gpu_uuid) AS gpu_uuid, toString(d.job) AS job, toString(d.run) AS run, 'xid' AS kind,
        toString(xid) AS what, toDateTime64(min(minute), 9, 'UTC') AS since, toDateTime64(max(minute), 9, 'UTC') AS until, 0. AS cost
    FROM {database}.devices_per_minute AS d ARRAY JOIN d.xids AS xid
    WHERE xid IN (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143)
    GROUP BY host, gpu_uuid, job, run, xid
    UNION ALL
    SELECT toString(d.host) AS host, toString(d.gpu_uuid) AS gpu_uuid, toString(d.job) AS job, toString(d.run) AS run, 'lost' AS kind,
        'lost' AS what, toDateTime64(min(minute), 9, 'UTC') AS since, toDateTime64(max(minute), 9, 'UTC') AS until, 0. AS cost
    FROM {database}.devices_per_minute AS d WHERE d.lost > 0 GROUP BY host, gpu_uuid, job, run
    UNION ALL
    SELECT toString(c.host) AS host, toString(c.gpu_uuid) AS gpu_uuid, '' AS job, '' AS run, 'check' AS kind, toString(c.name) AS what,
        min(c.time) AS since, max(c.time) AS until, 0. AS cost
    FROM {database}.checks AS c WHERE c.state = 'fail' GROUP BY host, gpu_uuid, what
) AS f
LEFT JOIN (
    SELECT toString(c.gpu_uuid) AS gpu_uuid, argMax(toString(c.serial), c.time) AS serial FROM {database}.checks AS c
    WHERE c.serial != '' GROUP BY gpu_uuid
) AS boards ON boards.gpu_uuid = f.gpu_uuid
LEFT JOIN (
    SELECT toString(p.gpu_uuid) AS gpu_uuid, uniqExact(p.job, p.run) AS runs FROM {database}.processes_versions AS p
    WHERE p.gpu_uuid != '' GROUP BY gpu_uuid
) AS used ON used.gpu_uuid = f.gpu_uuid
GROUP BY host, gpu_uuid
COMMENT 'GPUs and hosts that were at fault, over all jobs';
