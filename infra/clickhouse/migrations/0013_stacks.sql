-- gpu.stack.v1: Python stacks of ranks that a verdict named, and of one peer each.
CREATE TABLE IF NOT EXISTS {database}.stacks
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time, of the agent' CODEC(ZSTD(1)),
    sampled_process LowCardinality(String) COMMENT 'process id of the sampled process, as in processes' CODEC(ZSTD(1)),
    pid Int32 COMMENT 'its process id on its host' CODEC(ZSTD(1)),
    verdict LowCardinality(String) COMMENT 'what asked for the sampling: straggler, or hang' CODEC(ZSTD(1)),
    role LowCardinality(String) COMMENT 'culprit = the verdict names this rank; peer = a rank that it does not name, for comparison' CODEC(ZSTD(1)),
    named_rank Int32 COMMENT 'rank that the verdict names; for a culprit its own' CODEC(ZSTD(1)),
    first_step Int64 COMMENT 'first step of the verdict\'s window; -1 = none' CODEC(ZSTD(1)),
    last_step Int64 COMMENT 'last step of the verdict\'s window; -1 = none' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'start of the verdict\'s window, or of the standstill' CODEC(ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'start of the sampling' CODEC(ZSTD(1)),
    duration_ns Int64 COMMENT 'length of the sampling; ns' CODEC(ZSTD(1)),
    samples_total Int32 COMMENT 'times that the stacks of the process were read' CODEC(ZSTD(1)),
    gil_polls Int32 COMMENT 'times that the main thread\'s system call was read; 0 = it may not be read' CODEC(ZSTD(1)),
    gil_waiting Int32 COMMENT 'of these, times that it waited for the GIL' CODEC(ZSTD(1)),
    stacks_left_out Int32 COMMENT 'distinct stacks beyond the bound of a record' CODEC(ZSTD(1)),
    thread LowCardinality(String) COMMENT 'name of the thread' CODEC(ZSTD(1)),
    thread_id Int32 COMMENT 'its id on the host' CODEC(ZSTD(1)),
    is_main UInt8 COMMENT '1 = main thread' CODEC(ZSTD(1)),
    samples Int32 COMMENT 'samples with this stack in this thread' CODEC(ZSTD(1)),
    gil_samples Int32 COMMENT 'of as many samples more, taken at the same time: those in which it held the GIL' CODEC(ZSTD(1)),
    stack String COMMENT 'frames from the outermost to the innermost, function (file:line), separated by ";"; at most 64, the innermost' CODEC(ZSTD(1)),
    function LowCardinality(String) COMMENT 'function of the innermost frame' CODEC(ZSTD(1)),
    file LowCardinality(String) COMMENT 'its file' CODEC(ZSTD(1)),
    line Int32 COMMENT 'its line' CODEC(ZSTD(1)),
    caller LowCardinality(String) COMMENT 'innermost frame that is not of the standard library or an installed package; empty = none' CODEC(ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(Delta(8), ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    at String ALIAS if(caller != '', caller, concat(function, ' (', file, ':', toString(line), ')')) COMMENT 'caller, or the innermost frame where there is none',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (job, rank, time)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 67108864
COMMENT 'Python stacks of ranks that a verdict named, and of one peer each; a row a distinct stack of a thread';

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
