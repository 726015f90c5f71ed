-- The newest row of each key of the tables in 0002, under the names that people use.

CREATE OR REPLACE VIEW {database}.processes
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    local_rank Int32 COMMENT 'rank on its host',
    world_size Int32 COMMENT 'ranks of the job, as the launcher states',
    pid Int32 COMMENT 'process id on its host',
    start DateTime64(9, 'UTC') COMMENT 'start of the process',
    gpu_index Int32 COMMENT 'index of the GPU on its host',
    gpu_model LowCardinality(String) COMMENT 'as NVML names it',
    k8s_namespace LowCardinality(String) COMMENT 'Kubernetes namespace',
    k8s_pod LowCardinality(String) COMMENT 'Kubernetes pod',
    k8s_container LowCardinality(String) COMMENT 'Kubernetes container',
    slurm_job LowCardinality(String) COMMENT 'Slurm job id',
    source LowCardinality(String) COMMENT 'what published it: replay, agent (itself), cupti or nccl (a training process, and what records it)',
    labels Map(String, String) COMMENT 'free labels',
    versions Map(String, String) COMMENT 'versions of driver, CUPTI, NCCL, framework, drumline',
    policy LowCardinality(String) COMMENT 'what is collected at the moment, and why: \'on: always\', \'off: end of the process\'',
    collector Map(String, String) COMMENT 'what collecting cost so far (records, bytes, CPU seconds) and what it could not do, as text',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.processes_versions FINAL
COMMENT 'who a process is';

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
    peer Int32 COMMENT '-1 = collectives; else sends to, or receives from, this rank of the communicator: with one that has not ended, or all where NCCL measures a part of the steps',
    called Int64 COMMENT 'operations called so far: collectives, or sends or receives of the peer',
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1',
    ended Int64 COMMENT 'operations that ended, without a gap; those that NCCL does not measure count as ended',
    exact UInt8 COMMENT '1 = the three counts hold all of the communicator; 0 = some were not recorded',
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
    ras_json String COMMENT 'what NCCL''s RAS stated of the communicator since the process stands still: ranks, and of each kind at most 8 and their number: silent (rank in the communicator, host, pid, state) and behind (operation, called, of); empty = all answered and called as much, or RAS did not answer',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.progress_versions FINAL
COMMENT 'how far each rank is in its NCCL communicators, the newest only; of a peer whose row is older than the others nothing is open any more';

CREATE OR REPLACE VIEW {database}.kernel_frequency
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window',
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it',
    name LowCardinality(String) COMMENT 'kernel name',
    launches UInt64 COMMENT 'launches that started in the window',
    gpu_ns UInt64 COMMENT 'sum of durations; ns',
    min_ns UInt64 COMMENT 'shortest; ns',
    max_ns UInt64 COMMENT 'longest; ns',
    p50_ns Float64 COMMENT 'duration quantile 0.50, from logarithmic buckets; ns',
    p95_ns Float64 COMMENT 'duration quantile 0.95, from logarithmic buckets; ns',
    p99_ns Float64 COMMENT 'duration quantile 0.99, from logarithmic buckets; ns',
    grid_sum UInt64 COMMENT 'sum of grid sizes; blocks',
    grid_max UInt64 COMMENT 'largest grid; blocks',
    block_sum UInt64 COMMENT 'sum of block sizes; threads',
    block_max UInt32 COMMENT 'largest block; threads',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.kernel_frequency_versions FINAL
COMMENT 'rolling kernel frequency per process, window and kernel';

CREATE OR REPLACE VIEW {database}.memcpy_bandwidth
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    host LowCardinality(String) COMMENT 'host name',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time',
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window',
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it',
    kind UInt8 COMMENT 'copy kind as in gpu.memcpy.v1: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset',
    src_kind UInt8 COMMENT 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none (memset)',
    dst_kind UInt8 COMMENT 'target memory kind, same numbers',
    copies UInt64 COMMENT 'copies that started in the window',
    bytes UInt64 COMMENT 'sum of sizes; bytes',
    busy_ns UInt64 COMMENT 'sum of durations; ns',
    max_ns UInt64 COMMENT 'longest; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record',
    direction String COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String COMMENT 'target memory as text, the same words'
)
AS SELECT *, direction, source, target FROM {database}.memcpy_bandwidth_versions FINAL
COMMENT 'copies per process, window, direction and memory kinds';

CREATE OR REPLACE VIEW {database}.lateness
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about',
    host LowCardinality(String) COMMENT 'its host',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process, of the ranks that this worker joins; 1970 = not known',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    ranks Int32 COMMENT 'ranks seen in the communicator',
    point_to_point LowCardinality(String) COMMENT 'sends and receives seen: "" none, exchange = all ranks do the same (a ring, an all-to-all), pipeline = what one sends the other receives',
    step Int64 COMMENT 'step number',
    collectives Int32 COMMENT 'collectives compared; 0 = the step could not be, its ranks disagree on their number',
    wait_ns Int64 COMMENT 'sum over collectives of own duration - shortest; ns',
    lateness_ns Int64 COMMENT 'sum over collectives of longest - own duration; ns',
    exposed_wait_ns Int64 COMMENT 'sum over collectives of max(0, wait - covered_ns); ns',
    hidden_wait_ns Int64 COMMENT 'of rows measured by NCCL alone: sum of waits without the longest, hidden where the communicator overlaps compute; ns',
    floor_ns Int64 COMMENT 'sum of the shortest durations; ns',
    lag_ns Int64 COMMENT 'largest over collectives of the other ranks\' median duration - own; ns, below 0 = always before them',
    bytes UInt64 COMMENT 'sum of message sizes',
    worst_ordinal Int32 COMMENT 'collective with the largest lateness of this rank',
    worst_operation LowCardinality(String) COMMENT 'its operation: AllReduce, AllGather, ReduceScatter, AllToAll, Send, Recv, SendRecv, Broadcast, Scatter; empty = none',
    worst_longest_ns Int64 COMMENT 'its longest duration; ns',
    worst_own_ns Int64 COMMENT 'its own duration on this rank; ns',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
AS SELECT * FROM {database}.lateness_versions FINAL
COMMENT 'waiting of each rank on one communicator, per step';

-- Of a run that was evaluated more than once, the verdicts in force: of steps that several evaluations have, those of the newest begun.
CREATE OR REPLACE VIEW {database}.stragglers
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that the row is about; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known',
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ...',
    evaluation LowCardinality(String) COMMENT 'which evaluation of the run: app id of the stream worker and its steps of a window; empty = not known',
    first_step Int64 COMMENT 'first step of the window',
    last_step Int64 COMMENT 'last step of the window',
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank',
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank',
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window',
    steps_used Int64 COMMENT 'steps compared',
    steps_skipped Int64 COMMENT 'steps that could not be compared',
    step_ns Int64 COMMENT 'median length of a step; ns',
    severity Enum8('insufficient_data' = -1, 'ok' = 0, 'suspect' = 1, 'warning' = 2, 'critical' = 3) COMMENT 'the window on its own; words compare in this order: severity >= \'warning\' leaves out what is not known',
    state LowCardinality(String) COMMENT 'alarm state after the window: ok, suspect, warning, critical, cleared, insufficient_data',
    changed UInt8 COMMENT '1 = state, severity, cause, detail or group differ from the window before (or there was none); 0 = a heartbeat',
    episode_first_step Int64 COMMENT 'first step of the first window of the episode that the alarm is in, or that has just been cleared; -1 = none',
    episode_last_step Int64 COMMENT 'last step of its last window that was suspect or worse; -1 = none',
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, jitter, unknown, insufficient_data',
    detail LowCardinality(String) COMMENT 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers,no_past,ranks_missing,few_steps_recorded,no_collectives,unlike_collectives,few_steps_compared,other_source,stalled,silent,quarantine',
    group LowCardinality(String) COMMENT 'what is late as a whole and this rank is part of: a host or a communicator; empty = the rank alone',
    confidence LowCardinality(String) COMMENT 'confidence in the cause: none, low, medium, high',
    lost_ns Int64 COMMENT 'time the job lost to this rank in the window; ns',
    lost_share Float64 COMMENT 'lost_ns over the time of the steps that the rank was compared in (of the window, for the job as a whole); 0..1',
    lateness_ns Int64 COMMENT 'sum of its lateness; ns',
    wait_ns Int64 COMMENT 'sum of its waiting; ns',
    gpu_seconds_lost Float64 COMMENT 'GPU-seconds the other ranks spent waiting for it, 0 unless it is suspect or worse; for the job as a whole, those all ranks lost',
    money_lost Float64 COMMENT 'those at the configured price',
    evidence_json String COMMENT 'evidence: the numbers that the verdict rests on, as JSON',
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record',
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from',
    _offset UInt64 COMMENT 'offset of its record',
    _row UInt32 COMMENT 'number of the row in its record'
)
-- Most runs have one evaluation: their rows are read without bitmaps, which cost ten times as much as all else.
AS SELECT v.* FROM {database}.stragglers_versions AS v FINAL
WHERE (v.job, v.run) NOT IN (SELECT job, run FROM {database}.evaluations GROUP BY job, run HAVING uniqExact(evaluation) > 1)
UNION ALL
SELECT v.*
FROM {database}.stragglers_versions AS v FINAL
LEFT JOIN (
    WITH known AS (
        SELECT job, run, attempt_start, evaluation, min(begun) AS since, groupBitmapMergeState(e.steps) AS evaluated
        FROM {database}.evaluations AS e
        WHERE (job, run) IN (SELECT job, run FROM {database}.evaluations GROUP BY job, run HAVING uniqExact(evaluation) > 1)
        GROUP BY job, run, attempt_start, evaluation
    )
    SELECT
        one.job AS job,
        one.run AS run,
        one.attempt_start AS attempt_start,
        one.evaluation AS evaluation,
        any(one.evaluated) AS own,
        groupBitmapMergeState(other.evaluated) AS others,
        groupBitmapMergeStateIf(other.evaluated, (other.since, other.evaluation) > (one.since, one.evaluation)) AS newer
    FROM known AS one INNER JOIN known AS other ON one.job = other.job AND one.run = other.run
    -- Another evaluation may name an attempt by another process, if its first one reported late: they start within a minute.
    WHERE one.evaluation != other.evaluation
        AND abs(toUnixTimestamp64Nano(one.attempt_start) - toUnixTimestamp64Nano(other.attempt_start)) < 60000000000
    GROUP BY job, run, attempt_start, evaluation
) AS n ON n.job = v.job AND n.run = v.run AND n.attempt_start = v.attempt_start AND n.evaluation = v.evaluation
WHERE (v.job, v.run) IN (SELECT job, run FROM {database}.evaluations GROUP BY job, run HAVING uniqExact(evaluation) > 1)
-- Hidden is a window of which a newer evaluation has evaluated half, and one that any other has and this one has not.
AND (v.first_step < 0 OR 2 * bitmapCardinality(bitmapSubsetInRange(
    if(bitmapCardinality(bitmapSubsetInRange(n.own, toUInt64(v.first_step), toUInt64(v.last_step + 1))) = 0, n.others, n.newer),
    toUInt64(v.first_step), toUInt64(v.last_step + 1))) < greatest(v.last_step - v.first_step + 1, 1))
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole. Of a run that was evaluated again, those in force';

CREATE OR REPLACE VIEW {database}.hangs
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole',
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown',
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
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known',
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...',
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts',
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended',
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved',
    time DateTime64(9, 'UTC') COMMENT 'when this was found out',
    ranks_seen Int32 COMMENT 'ranks whose progress is known',
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over',
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits',
    operation LowCardinality(String) COMMENT 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own',
    datatype LowCardinality(String) COMMENT 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown',
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
AS SELECT * FROM {database}.hangs_versions FINAL WHERE (job, run, (attempt_start, time, episode, revision)) IN (
    SELECT h.job, h.run, max((h.attempt_start, h.time, h.episode, h.revision))
    FROM {database}.hangs_versions AS h GROUP BY h.job, h.run)
COMMENT 'the newest state of each run in hangs';

CREATE OR REPLACE VIEW {database}.kernel_names
(
    name String COMMENT 'as in `kernels`',
    short LowCardinality(String) COMMENT 'short form; kernels that only apply another function name that too',
    family LowCardinality(String) COMMENT 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, communication = that of other libraries, copy, other',
    demangled String COMMENT 'C++ name; what is not mangled, as it is',
    rules UInt32 COMMENT 'version of the rules that named it'
)
AS SELECT * FROM {database}.kernel_names_versions FINAL
COMMENT 'kernel names as people read them';

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
