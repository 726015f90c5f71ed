-- Faults of machines one by one, the view `offenders` over them, and notices about hosts for a webhook.

-- A verdict counts if its cause is one of the machine; ranks that wait for it are named by none. XIDs are those of the
-- hardware (docs.nvidia.com/deploy/xid-errors). Without a job, a loss and an XID count once a day, and so does a check.
CREATE OR REPLACE VIEW {database}.faults
(
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU; empty = the host, or not known',
    job String COMMENT 'job name; empty = none ran on it',
    run String COMMENT 'one start of the job; empty = none',
    kind String COMMENT 'verdict, xid, lost or check',
    name String COMMENT 'cause of the verdict, number of the XID, or name of the check',
    first_time DateTime64(9, 'UTC') COMMENT 'first time in this run; without a job, on this day',
    last_time DateTime64(9, 'UTC') COMMENT 'last time in this run; without a job, on this day',
    gpu_seconds_lost Float64 COMMENT 'GPU time that a verdict cost; s'
)
AS SELECT toString(s.host) AS host, toString(s.gpu_uuid) AS gpu_uuid, toString(s.job) AS job, toString(s.run) AS run, 'verdict' AS kind,
    if(detail = '', toString(cause), concat(cause, ', ', detail)) AS name, min(window_start) AS first_time, max(window_end) AS last_time,
    toFloat64(sum(s.gpu_seconds_lost)) AS gpu_seconds_lost
FROM {database}.stragglers AS s
WHERE rank >= 0 AND s.gpu_uuid != '' AND severity >= 'suspect' AND state IN ('warning', 'critical') AND (cause = 'slow_gpu'
    OR (cause = 'slow_compute' AND detail IN ('throttled', 'slow_part', 'same_work'))
    OR (cause = 'slow_copy' AND detail != 'pageable')
    OR (cause = 'host_stall' AND detail IN ('disk', 'cpu_throttled', 'cpu_contention', 'page_faults')))
GROUP BY host, gpu_uuid, job, run, name
UNION ALL
SELECT toString(d.host) AS host, toString(d.gpu_uuid) AS gpu_uuid, toString(d.job) AS job, toString(d.run) AS run, 'xid' AS kind,
    toString(xid) AS name, toDateTime64(min(minute), 9, 'UTC') AS first_time, toDateTime64(max(minute), 9, 'UTC') AS last_time, 0. AS gpu_seconds_lost
FROM {database}.devices_per_minute AS d ARRAY JOIN d.xids AS xid
WHERE xid IN (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143)
GROUP BY host, gpu_uuid, job, run, xid, if(d.job = '', toDate(minute), toDate(0))
UNION ALL
SELECT toString(d.host) AS host, toString(d.gpu_uuid) AS gpu_uuid, toString(d.job) AS job, toString(d.run) AS run, 'lost' AS kind,
    'lost' AS name, toDateTime64(min(minute), 9, 'UTC') AS first_time, toDateTime64(max(minute), 9, 'UTC') AS last_time, 0. AS gpu_seconds_lost
FROM {database}.devices_per_minute AS d WHERE d.lost > 0
GROUP BY host, gpu_uuid, job, run, if(d.job = '', toDate(minute), toDate(0))
UNION ALL
SELECT toString(c.host) AS host, toString(c.gpu_uuid) AS gpu_uuid, '' AS job, '' AS run, 'check' AS kind, toString(c.name) AS name,
    min(c.time) AS first_time, max(c.time) AS last_time, 0. AS gpu_seconds_lost
FROM {database}.checks AS c WHERE c.state = 'fail' GROUP BY host, gpu_uuid, name, toDate(c.time)
COMMENT 'faults of GPUs and hosts, over all jobs';

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
    arraySort(groupUniqArrayIf(toInt64OrZero(f.name), f.kind = 'xid')) AS xids,
    toUInt64(greatest(uniqExactIf((f.job, f.run), f.kind = 'lost' AND f.job != ''), toUInt64(countIf(f.kind = 'lost') > 0))) AS losses,
    arraySort(groupUniqArrayIf(f.name, f.kind = 'check')) AS failed_checks,
    arraySort(groupUniqArrayIf(f.name, f.kind = 'verdict')) AS causes,
    sum(f.gpu_seconds_lost) AS gpu_seconds_lost,
    min(f.first_time) AS first_time,
    max(f.last_time) AS last_time
FROM {database}.faults AS f
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

-- `drumline notify` writes a notice here before it is sent, and again when the receiver has taken it.
CREATE TABLE IF NOT EXISTS {database}.offender_notices_versions
(
    host String COMMENT 'host that the notice is about' CODEC(ZSTD(1)),
    id UUID COMMENT 'of the host and the faults: the same faults make the same notice' CODEC(ZSTD(1)),
    faults Array(String) COMMENT 'faults that are new in it: job and run, or kind, name and day' CODEC(ZSTD(1)),
    body String COMMENT 'JSON that is sent' CODEC(ZSTD(1)),
    made DateTime64(3, 'UTC') COMMENT 'when it was made' CODEC(ZSTD(1)),
    sent UInt8 COMMENT '1 = the receiver has taken it' CODEC(ZSTD(1)),
    changed DateTime64(3, 'UTC') COMMENT 'when it was made or taken' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(sent)
ORDER BY (host, id)
SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'notices about hosts at fault, for a webhook';

CREATE OR REPLACE VIEW {database}.offender_notices
(
    host String COMMENT 'host that the notice is about',
    id UUID COMMENT 'of the host and the faults: the same faults make the same notice',
    faults Array(String) COMMENT 'faults that are new in it: job and run, or kind, name and day',
    body String COMMENT 'JSON that is sent',
    made DateTime64(3, 'UTC') COMMENT 'when it was made',
    sent UInt8 COMMENT '1 = the receiver has taken it',
    changed DateTime64(3, 'UTC') COMMENT 'when it was made or taken'
)
AS SELECT * FROM {database}.offender_notices_versions FINAL
COMMENT 'notices about hosts at fault, for a webhook';
