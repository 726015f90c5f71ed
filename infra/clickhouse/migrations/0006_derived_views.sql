-- What is derived from several tables, or from the history of one.

-- A row a run: when it ran, on what, and what is stored of it.
CREATE OR REPLACE VIEW {database}.jobs
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    started DateTime64(9, 'UTC') COMMENT 'start of its first kernel or step; while none is stored, when Kafka got its first records',
    ended DateTime64(9, 'UTC') COMMENT 'start of its last kernel or step so far; while none is stored, when Kafka got its last record',
    ranks UInt64 COMMENT 'ranks that sent kernels, steps, progress or what they are',
    hosts UInt64 COMMENT 'hosts of these ranks',
    kernels UInt64 COMMENT 'rows stored in `kernels`',
    memcpys UInt64 COMMENT 'rows stored in `memcpys`',
    collectives UInt64 COMMENT 'rows stored in `collectives`',
    steps UInt64 COMMENT 'rows stored in `steps`',
    dropped_rows Int64 COMMENT 'rows of any kind lost before publication',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got its last record'
)
AS SELECT
    job,
    run,
    if(max(timed), minIf(time_min, timed), min(toDateTime64(r.last_published, 9, 'UTC'))) AS started,
    if(max(timed), maxIf(time_max, timed), max(toDateTime64(r.last_published, 9, 'UTC'))) AS ended,
    uniqExactIfMerge(r.ranks) AS ranks,
    uniqExactIfMerge(r.hosts) AS hosts,
    sumIf(rows, topic = 'gpu.kernel.v1') AS kernels,
    sumIf(rows, topic = 'gpu.memcpy.v1') AS memcpys,
    sumIf(rows, topic = 'gpu.collective.v1') AS collectives,
    sumIf(rows, topic = 'gpu.step.v1') AS steps,
    sum(r.dropped_rows) AS dropped_rows,
    max(r.last_published) AS last_published
FROM (
    SELECT *, topic IN ('gpu.kernel.v1', 'gpu.step.v1') AND rows > 0 AS timed
    FROM {database}.records_per_minute
    WHERE job != ''
) AS r
GROUP BY job, run
COMMENT 'a row a run: when it ran, on what, and what is stored of it';

-- The attempts of each run, in order.
CREATE OR REPLACE VIEW {database}.attempts
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one job, under one name on all ranks and after restarts',
    attempt UInt32 COMMENT 'its number in the run: 1, 2, ...',
    attempts UInt32 COMMENT 'attempts of the run so far',
    attempt_start DateTime64(9, 'UTC') COMMENT 'start of its first process; names it in lateness, stragglers and hangs',
    next_start DateTime64(9, 'UTC') COMMENT 'start of the next one; 2262 = it is the newest',
    first_step Int64 COMMENT 'first step with a verdict; -1 = none',
    last_step Int64 COMMENT 'last step with a verdict; -1 = none'
)
AS SELECT
    job,
    run,
    number AS attempt,
    toUInt32(length(sorted)) AS attempts,
    one.1 AS attempt_start,
    if(number = length(sorted), toDateTime64('2262-01-01', 9, 'UTC'), sorted[number + 1].1) AS next_start,
    one.2 AS first_step,
    one.3 AS last_step
FROM (
    SELECT
        job,
        run,
        groupArray((begin, first, last, since, evaluation)) AS of_all,
        -- Another evaluation may name an attempt by another process, if its first one reported late: they start within a
        -- minute, and the newest evaluation's name counts.
        arrayFilter(
            x -> NOT arrayExists(
                y -> y.5 != x.5 AND (y.4, y.5) > (x.4, x.5) AND abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < 60000000000, of_all),
            of_all
        ) AS named,
        arraySort(arrayMap(
            x -> (
                x.1,
                arrayMin(arrayMap(y -> y.2, arrayFilter(y -> y.2 >= 0 AND abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < if(y.5 = x.5, 1, 60000000000), of_all))),
                arrayMax(arrayMap(y -> y.3, arrayFilter(y -> abs(toUnixTimestamp64Nano(y.1) - toUnixTimestamp64Nano(x.1)) < if(y.5 = x.5, 1, 60000000000), of_all)))
            ),
            named
        )) AS sorted
    FROM (
        SELECT
            job,
            run,
            attempt_start AS begin,
            evaluation,
            min(e.begun) AS since,
            groupBitmapMergeState(e.steps) AS evaluated,
            bitmapCardinality(evaluated) = 0 AS is_empty,
            if(is_empty, -1, toInt64(bitmapMin(evaluated))) AS first,
            if(is_empty, -1, toInt64(bitmapMax(evaluated))) AS last
        FROM {database}.evaluations AS e
        GROUP BY job, run, attempt_start, evaluation
    )
    GROUP BY job, run
)
ARRAY JOIN sorted AS one, arrayEnumerate(sorted) AS number
COMMENT 'the attempts of each run that have verdicts, in order: a job that restarts under one name is one run';

-- Which windows of steps could be evaluated, and why the others could not: derived from the row of the job as a whole.
CREATE OR REPLACE VIEW {database}.coverage
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    first_step Int64 COMMENT 'first step of the window; -1 = the stream worker dropped the job for some minutes',
    last_step Int64 COMMENT 'last step of the window',
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank',
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank',
    evaluated UInt8 COMMENT '1 = the window has verdicts',
    reason LowCardinality(String) COMMENT 'why it has none: ranks_missing, few_steps_recorded, no_collectives, unlike_collectives, few_steps_compared, other_source, no_past, quarantine; empty = it has',
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window',
    steps_used Int64 COMMENT 'steps compared',
    steps_skipped Int64 COMMENT 'steps that could not be compared',
    step_ns Int64 COMMENT 'median length of a step; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record'
)
AS SELECT
    job,
    run,
    first_step,
    last_step,
    window_start,
    window_end,
    severity >= 'ok' AS evaluated,
    toLowCardinality(if(severity >= 'ok', '', toString(detail))) AS reason,
    ranks_seen,
    steps_used,
    steps_skipped,
    step_ns,
    published
FROM {database}.stragglers
WHERE rank = -1 AND detail NOT IN ('stalled', 'silent')
COMMENT 'a row a window of steps with rows of any rank: whether it was evaluated, and why not';

CREATE OR REPLACE VIEW {database}.job_coverage
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    windows UInt64 COMMENT 'windows of steps; those in which a past was too short count only while none was evaluated',
    evaluated_windows UInt64 COMMENT 'of them, those with verdicts',
    evaluated_share Nullable(Float64) COMMENT 'their share; 0..1, NULL without windows',
    reason LowCardinality(String) COMMENT 'why most others have none, as in `coverage`; without windows no_steps = none is known, no_verdict = none was evaluated; empty = all have'
)
AS SELECT
    job,
    run,
    if(w.evaluated > 0, w.measured, w.seen) AS windows,
    w.evaluated AS evaluated_windows,
    if(windows = 0, NULL, evaluated_windows / windows) AS evaluated_share,
    toLowCardinality(multiIf(windows > 0, if(evaluated_windows < windows, w.why, ''),
        j.ranks < 2, '', j.steps > 0, 'no_verdict', 'no_steps')) AS reason
FROM {database}.jobs AS j
LEFT JOIN (
    SELECT job, run, count() AS seen, countIf(c.evaluated OR c.reason != 'no_past') AS measured,
        countIf(c.evaluated) AS evaluated,
        multiIf(
            countIf(NOT c.evaluated AND c.reason != 'no_past') > 0,
            toString(topKIf(1)(c.reason, NOT c.evaluated AND c.reason != 'no_past')[1]),
            countIf(NOT c.evaluated) > 0, 'no_past', '') AS why
    FROM {database}.coverage AS c GROUP BY job, run
) AS w USING (job, run)
COMMENT 'a row a run: the part of its windows of steps that was evaluated, and why the rest was not';

CREATE OR REPLACE VIEW {database}.hot_stacks
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the verdict names',
    host LowCardinality(String) COMMENT 'its host',
    verdict LowCardinality(String) COMMENT 'what asked for the sampling: straggler, or hang',
    first_step Int64 COMMENT 'first step of the verdict\'s window; -1 = none',
    last_step Int64 COMMENT 'last step of the verdict\'s window; -1 = none',
    window_start DateTime64(9, 'UTC') COMMENT 'start of the verdict\'s window, or of the standstill',
    sampled DateTime64(9, 'UTC') COMMENT 'start of the newest sampling',
    position UInt64 COMMENT '1 = the hottest; the hottest of the main thread is there in any case',
    is_main UInt8 COMMENT '1 = main thread',
    thread String COMMENT 'name of the thread, one of them where several have this stack',
    culprit_share Float64 COMMENT 'share of the samples of the named rank with this stack; 1 = one thread, all the time',
    peer_share Float64 COMMENT 'the same of its peer; 0 where no peer was sampled',
    peers UInt64 COMMENT 'samplings of a peer; 0 = nothing is subtracted, and stacks of the main thread come first',
    excess Float64 COMMENT 'culprit_share - peer_share',
    at String COMMENT 'innermost frame that is not of the standard library or an installed package, else the innermost: function (file:line)',
    function String COMMENT 'function of the innermost frame',
    file String COMMENT 'its file',
    line Int32 COMMENT 'its line',
    stack String COMMENT 'frames from the outermost to the innermost, separated by ";"',
    finding String COMMENT 'python_lock = the main thread waited for the GIL in half of the polls or more, and another thread held it; empty = nothing',
    gil_wait_share Float64 COMMENT 'share of the polls in which the main thread waited for the GIL',
    gil_holder String COMMENT 'other thread that held the GIL most, and its frame; empty = none'
)
AS SELECT job, run, rank, host, verdict, first_step, last_step, window_start, sampled, position, is_main, thread,
    culprit_share, peer_share, peers, excess, at, function, file, line, stack,
    if(gil_wait_share >= 0.5 AND gil_holder != '', 'python_lock', '') AS finding, gil_wait_share, gil_holder
FROM
(
    SELECT *, culprit_sum / culprits AS culprit_share, peer_sum / greatest(peers, 1) AS peer_share,
        culprit_share - peer_share AS excess,
        row_number() OVER (PARTITION BY job, run, verdict, window_start, rank
            ORDER BY peers = 0 AND is_main = 1 DESC, excess DESC, is_main DESC, stack) AS position,
        row_number() OVER (PARTITION BY job, run, verdict, window_start, rank, is_main
            ORDER BY excess DESC, stack) AS position_in_main
    FROM
    (
        SELECT job, run, s.verdict AS verdict, s.window_start AS window_start, s.named_rank AS rank, s.is_main AS is_main,
            s.stack AS stack, argMaxIf(s.thread, s.samples, s.role = 'culprit') AS thread, any(s.at) AS at,
            any(s.function) AS function, any(s.file) AS file, any(s.line) AS line,
            sumIf(s.samples / s.samples_total, s.role = 'culprit') AS culprit_sum,
            sumIf(s.samples / s.samples_total, s.role = 'peer') AS peer_sum
        FROM {database}.stacks AS s WHERE s.samples_total > 0
        GROUP BY job, run, verdict, window_start, rank, is_main, stack HAVING culprit_sum > 0
    ) AS folded
    INNER JOIN
    (
        SELECT job, run, s.verdict AS verdict, s.window_start AS window_start, s.named_rank AS rank,
            anyIf(s.host, s.role = 'culprit') AS host, any(s.first_step) AS first_step, any(s.last_step) AS last_step,
            max(s.time) AS sampled, uniqExactIf((s.sampled_process, s.time), s.role = 'culprit') AS culprits,
            uniqExactIf((s.sampled_process, s.time), s.role = 'peer') AS peers,
            groupUniqArrayIf((s.time, s.gil_waiting, s.gil_polls), s.role = 'culprit') AS polls,
            arraySum(poll -> poll.2, polls) / greatest(arraySum(poll -> poll.3, polls), 1) AS gil_wait_share,
            argMaxIf(concat(s.thread, ': ', s.function, ' (', s.file, ':', toString(s.line), ')'), s.gil_samples,
                s.role = 'culprit' AND s.is_main = 0 AND s.gil_samples > 0) AS gil_holder
        FROM {database}.stacks AS s GROUP BY job, run, verdict, window_start, rank
    ) AS samplings USING (job, run, verdict, window_start, rank)
)
WHERE position <= 5 OR (is_main = 1 AND position_in_main = 1)
COMMENT 'where a named rank was and its peer was not: the five hottest stacks of each verdict, culprit minus peer';

-- Faults of machines one by one, over all jobs. A verdict counts if its cause is one of the machine; ranks that wait for it are
-- named by none. XIDs are those of the hardware (docs.nvidia.com/deploy/xid-errors). Without a job, a loss and an XID count
-- once a day, and so does a check.
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

-- Machines that fail again: their faults by GPU and host.
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
