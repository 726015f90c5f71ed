-- Rows that replace earlier ones with the same key: the newest Kafka offset wins. Read the views (0005), which have the
-- names without _versions.
-- attempt_start: a job that restarts under one run id begins a new attempt, whose steps count from anywhere again, so no row
-- of one attempt replaces a row of another. What only tells versions apart ends the sorting key and is not in the primary key.

-- gpu.process.v1: who a process is.
CREATE TABLE IF NOT EXISTS {database}.processes_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    local_rank Int32 COMMENT 'rank on its host' CODEC(ZSTD(1)),
    world_size Int32 COMMENT 'ranks of the job, as the launcher states' CODEC(ZSTD(1)),
    pid Int32 COMMENT 'process id on its host' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'start of the process' CODEC(Delta(8), T64, ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host' CODEC(ZSTD(1)),
    gpu_model LowCardinality(String) COMMENT 'as NVML names it' CODEC(ZSTD(1)),
    k8s_namespace LowCardinality(String) COMMENT 'Kubernetes namespace' CODEC(ZSTD(1)),
    k8s_pod LowCardinality(String) COMMENT 'Kubernetes pod' CODEC(ZSTD(1)),
    k8s_container LowCardinality(String) COMMENT 'Kubernetes container' CODEC(ZSTD(1)),
    slurm_job LowCardinality(String) COMMENT 'Slurm job id' CODEC(ZSTD(1)),
    source LowCardinality(String) COMMENT 'what published it: replay, agent (itself), cupti or nccl (a training process, and what records it)' CODEC(ZSTD(1)),
    labels Map(String, String) COMMENT 'free labels' CODEC(ZSTD(1)),
    versions Map(String, String) COMMENT 'versions of driver, CUPTI, NCCL, framework, drumline' CODEC(ZSTD(1)),
    policy LowCardinality(String) COMMENT 'what is collected at the moment, and why: \'on: always\', \'off: end of the process\'' CODEC(ZSTD(1)),
    collector Map(String, String) COMMENT 'what collecting cost so far (records, bytes, CPU seconds) and what it could not do, as text' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, rank, process_id)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'who a process is';

-- gpu.progress.v1: how far each rank is in NCCL. Sends to a peer and receives from it are counted apart: a row for each.
CREATE TABLE IF NOT EXISTS {database}.progress_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'host time of the call of `operation`; without one, when the communicator was created' CODEC(Delta(8), ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    comm_rank Int32 COMMENT 'its own rank in the communicator' CODEC(ZSTD(1)),
    ranks Int32 COMMENT 'ranks of the communicator' CODEC(ZSTD(1)),
    peer Int32 COMMENT '-1 = collectives; else sends to, or receives from, this rank of the communicator: with one that has not ended, or all where NCCL measures a part of the steps' CODEC(ZSTD(1)),
    called Int64 COMMENT 'operations called so far: collectives, or sends or receives of the peer' CODEC(T64, ZSTD(1)),
    begun Int64 COMMENT 'number of the newest one that began on the GPU; the first is 1' CODEC(T64, ZSTD(1)),
    ended Int64 COMMENT 'operations that ended, without a gap; those that NCCL does not measure count as ended' CODEC(T64, ZSTD(1)),
    exact UInt8 COMMENT '1 = the three counts hold all of the communicator; 0 = some were not recorded' CODEC(ZSTD(1)),
    closed UInt8 COMMENT '1 = the communicator is closed' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'the first operation that has not ended, or else the last one' CODEC(ZSTD(1)),
    datatype LowCardinality(String) COMMENT 'its type of elements' CODEC(ZSTD(1)),
    elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    bytes Int64 COMMENT 'its size on this rank; bytes' CODEC(T64, ZSTD(1)),
    last_operation LowCardinality(String) COMMENT 'the operation that ended before it' CODEC(ZSTD(1)),
    last_datatype LowCardinality(String) COMMENT 'its type of elements' CODEC(ZSTD(1)),
    last_elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    step Int64 COMMENT 'step of the process; -1 = none' CODEC(Delta(8), ZSTD(1)),
    quiet_ns Int64 COMMENT 'time since the process last called or ended an operation, opened or closed a communicator, or began a step; ns' CODEC(T64, ZSTD(1)),
    state LowCardinality(String) COMMENT 'of the process: running, stopped by a signal, killed (it ended, and not by its exit), exited' CODEC(ZSTD(1)),
    ras_json String COMMENT 'what NCCL''s RAS stated of the communicator since the process stands still: ranks, and of each kind at most 8 and their number: silent (rank in the communicator, host, pid, state) and behind (operation, called, of); empty = all answered and called as much, or RAS did not answer' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (job, run, rank, process_id, communicator, peer, if(peer < 0, '', operation))
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'how far each rank is in its NCCL communicators, the newest only; of a peer whose row is older than the others nothing is open any more';

-- gpu.kernel-frequency.v1: rolling kernel frequency per process, window and kernel.
CREATE TABLE IF NOT EXISTS {database}.kernel_frequency_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window' CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel name' CODEC(ZSTD(1)),
    launches UInt64 COMMENT 'launches that started in the window' CODEC(ZSTD(1)),
    gpu_ns UInt64 COMMENT 'sum of durations; ns' CODEC(T64, ZSTD(1)),
    min_ns UInt64 COMMENT 'shortest; ns' CODEC(T64, ZSTD(1)),
    max_ns UInt64 COMMENT 'longest; ns' CODEC(T64, ZSTD(1)),
    p50_ns Float64 COMMENT 'duration quantile 0.50, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    p95_ns Float64 COMMENT 'duration quantile 0.95, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    p99_ns Float64 COMMENT 'duration quantile 0.99, from logarithmic buckets; ns' CODEC(ZSTD(1)),
    grid_sum UInt64 COMMENT 'sum of grid sizes; blocks' CODEC(ZSTD(1)),
    grid_max UInt64 COMMENT 'largest grid; blocks' CODEC(ZSTD(1)),
    block_sum UInt64 COMMENT 'sum of block sizes; threads' CODEC(ZSTD(1)),
    block_max UInt32 COMMENT 'largest block; threads' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, name)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'rolling kernel frequency per process, window and kernel';

-- gpu.memcpy-bandwidth.v1: copies per process, window, direction and memory kinds.
CREATE TABLE IF NOT EXISTS {database}.memcpy_bandwidth_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'first ns of the window' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'first ns after the window' CODEC(Delta(8), T64, ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ... when late rows changed it' CODEC(ZSTD(1)),
    kind UInt8 COMMENT 'copy kind as in gpu.memcpy.v1: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset' CODEC(ZSTD(1)),
    src_kind UInt8 COMMENT 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none (memset)' CODEC(ZSTD(1)),
    dst_kind UInt8 COMMENT 'target memory kind, same numbers' CODEC(ZSTD(1)),
    copies UInt64 COMMENT 'copies that started in the window' CODEC(ZSTD(1)),
    bytes UInt64 COMMENT 'sum of sizes; bytes' CODEC(ZSTD(1)),
    busy_ns UInt64 COMMENT 'sum of durations; ns' CODEC(T64, ZSTD(1)),
    max_ns UInt64 COMMENT 'longest; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other') COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'target memory as text, the same words'
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY toDate(window_start)
ORDER BY (job, run, rank, process_id, window_start, window_end, kind, src_kind, dst_kind)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'copies per process, window, direction and memory kinds';

-- gpu.lateness.v1: waiting of each rank on one communicator, per step.
CREATE TABLE IF NOT EXISTS {database}.lateness_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that the row is about' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU' CODEC(ZSTD(1)),
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process, of the ranks that this worker joins; 1970 = not known' CODEC(Delta(8), ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    ranks Int32 COMMENT 'ranks seen in the communicator' CODEC(ZSTD(1)),
    point_to_point LowCardinality(String) COMMENT 'sends and receives seen: "" none, exchange = all ranks do the same (a ring, an all-to-all), pipeline = what one sends the other receives' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step number' CODEC(Delta(8), ZSTD(1)),
    collectives Int32 COMMENT 'collectives compared; 0 = the step could not be, its ranks disagree on their number' CODEC(ZSTD(1)),
    wait_ns Int64 COMMENT 'sum over collectives of own duration - shortest; ns' CODEC(T64, ZSTD(1)),
    lateness_ns Int64 COMMENT 'sum over collectives of longest - own duration; ns' CODEC(T64, ZSTD(1)),
    exposed_wait_ns Int64 COMMENT 'sum over collectives of max(0, wait - covered_ns); ns' CODEC(T64, ZSTD(1)),
    hidden_wait_ns Int64 COMMENT 'of rows measured by NCCL alone: sum of waits without the longest, hidden where the communicator overlaps compute; ns' CODEC(T64, ZSTD(1)),
    floor_ns Int64 COMMENT 'sum of the shortest durations; ns' CODEC(T64, ZSTD(1)),
    lag_ns Int64 COMMENT 'largest over collectives of the other ranks\' median duration - own; ns, below 0 = always before them' CODEC(T64, ZSTD(1)),
    bytes UInt64 COMMENT 'sum of message sizes' CODEC(ZSTD(1)),
    worst_ordinal Int32 COMMENT 'collective with the largest lateness of this rank' CODEC(ZSTD(1)),
    worst_operation LowCardinality(String) COMMENT 'its operation: AllReduce, AllGather, ReduceScatter, AllToAll, Send, Recv, SendRecv, Broadcast, Scatter; empty = none' CODEC(ZSTD(1)),
    worst_longest_ns Int64 COMMENT 'its longest duration; ns' CODEC(T64, ZSTD(1)),
    worst_own_ns Int64 COMMENT 'its own duration on this rank; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PRIMARY KEY (job, run, communicator, step, rank)
ORDER BY (job, run, communicator, step, rank, attempt_start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'waiting of each rank on one communicator, per step';

-- gpu.straggler.v1: verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole. A run can be evaluated
-- more than once: by a worker with another app id, or with windows of other lengths. Each evaluation has rows of its own.
CREATE TABLE IF NOT EXISTS {database}.stragglers_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that the row is about; -1 = the job as a whole' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known' CODEC(Delta(8), ZSTD(1)),
    revision Int64 COMMENT '0 for the first emission of a window, then 1, 2, ...' CODEC(ZSTD(1)),
    evaluation LowCardinality(String) COMMENT 'which evaluation of the run: app id of the stream worker and its steps of a window; empty = not known' CODEC(ZSTD(1)),
    first_step Int64 COMMENT 'first step of the window' CODEC(ZSTD(1)),
    last_step Int64 COMMENT 'last step of the window' CODEC(ZSTD(1)),
    window_start DateTime64(9, 'UTC') COMMENT 'host start of the first step, earliest rank' CODEC(Delta(8), T64, ZSTD(1)),
    window_end DateTime64(9, 'UTC') COMMENT 'host end of the last step, latest rank' CODEC(Delta(8), T64, ZSTD(1)),
    ranks_seen Int32 COMMENT 'ranks with usable steps in the window' CODEC(ZSTD(1)),
    steps_used Int64 COMMENT 'steps compared' CODEC(ZSTD(1)),
    steps_skipped Int64 COMMENT 'steps that could not be compared' CODEC(ZSTD(1)),
    step_ns Int64 COMMENT 'median length of a step; ns' CODEC(T64, ZSTD(1)),
    severity Enum8('insufficient_data' = -1, 'ok' = 0, 'suspect' = 1, 'warning' = 2, 'critical' = 3) COMMENT 'the window on its own; words compare in this order: severity >= \'warning\' leaves out what is not known' CODEC(ZSTD(1)),
    state LowCardinality(String) COMMENT 'alarm state after the window: ok, suspect, warning, critical, cleared, insufficient_data' CODEC(ZSTD(1)),
    changed UInt8 COMMENT '1 = state, severity, cause, detail or group differ from the window before (or there was none); 0 = a heartbeat' CODEC(ZSTD(1)),
    episode_first_step Int64 COMMENT 'first step of the first window of the episode that the alarm is in, or that has just been cleared; -1 = none' CODEC(ZSTD(1)),
    episode_last_step Int64 COMMENT 'last step of its last window that was suspect or worse; -1 = none' CODEC(ZSTD(1)),
    cause LowCardinality(String) COMMENT 'cause: ok, host_stall, slow_compute, slow_gpu, slow_copy, slow_link, changed_job, jitter, unknown, insufficient_data' CODEC(ZSTD(1)),
    detail LowCardinality(String) COMMENT 'finer cause; host_stall: data_loader, garbage_collection, checkpoint, synchronisation, cpu_contention,cpu_throttled, python_lock, page_faults, disk; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; slow_copy: pageable; unknown: mixed; insufficient_data: no_peers,no_past,ranks_missing,few_steps_recorded,no_collectives,unlike_collectives,few_steps_compared,other_source,stalled,silent,quarantine' CODEC(ZSTD(1)),
    group LowCardinality(String) COMMENT 'what is late as a whole and this rank is part of: a host or a communicator; empty = the rank alone' CODEC(ZSTD(1)),
    confidence LowCardinality(String) COMMENT 'confidence in the cause: none, low, medium, high' CODEC(ZSTD(1)),
    lost_ns Int64 COMMENT 'time the job lost to this rank in the window; ns' CODEC(T64, ZSTD(1)),
    lost_share Float64 COMMENT 'lost_ns over the time of the steps that the rank was compared in (of the window, for the job as a whole); 0..1' CODEC(ZSTD(1)),
    lateness_ns Int64 COMMENT 'sum of its lateness; ns' CODEC(T64, ZSTD(1)),
    wait_ns Int64 COMMENT 'sum of its waiting; ns' CODEC(T64, ZSTD(1)),
    gpu_seconds_lost Float64 COMMENT 'GPU-seconds the other ranks spent waiting for it, 0 unless it is suspect or worse; for the job as a whole, those all ranks lost' CODEC(ZSTD(1)),
    money_lost Float64 COMMENT 'those at the configured price' CODEC(ZSTD(1)),
    evidence_json String COMMENT 'evidence: the numbers that the verdict rests on, as JSON' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PRIMARY KEY (job, run, first_step, last_step, rank)
ORDER BY (job, run, first_step, last_step, rank, evaluation, attempt_start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'verdicts per job and window of steps, a row a rank; rank -1 = the job as a whole';

-- gpu.hang.v1: jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes.
CREATE TABLE IF NOT EXISTS {database}.hangs_versions
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'rank that is named; -1 = the job as a whole' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'its host; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of its GPU; empty = unknown, or the job as a whole' CODEC(ZSTD(1)),
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known' CODEC(Delta(8), ZSTD(1)),
    episode Int64 COMMENT 'number of the standstill in the run: 1, 2, ...' CODEC(T64, ZSTD(1)),
    revision Int64 COMMENT '0 for its first record, then 1, 2, ...; the highest one counts' CODEC(T64, ZSTD(1)),
    state LowCardinality(String) COMMENT 'standing; hung = for longer than DRUMLINE_STREAM__HUNG_S while others wait; moving = it goes on; over = it has ended' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'when the job last moved' CODEC(Delta(8), ZSTD(1)),
    time DateTime64(9, 'UTC') COMMENT 'when this was found out' CODEC(Delta(8), ZSTD(1)),
    ranks_seen Int32 COMMENT 'ranks whose progress is known' CODEC(ZSTD(1)),
    reason LowCardinality(String) COMMENT 'why it is named: not_called, not_started, not_ended, mismatch, deadlock, stopped, gone, silent, no_operation, insufficient_data; empty = the job goes on or is over' CODEC(ZSTD(1)),
    communicator LowCardinality(String) COMMENT 'NCCL communicator hash, 16 hex digits' CODEC(ZSTD(1)),
    operation LowCardinality(String) COMMENT 'operation in which ranks wait: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv, Send, Recv, AlltoAll, Scatter, Gather, AllGatherV, PutSignal, Signal, WaitSignal; of a mismatch and a deadlock the rank\'s own' CODEC(ZSTD(1)),
    datatype LowCardinality(String) COMMENT 'its type of elements: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2; empty = unknown' CODEC(ZSTD(1)),
    number Int64 COMMENT 'its number in the communicator, from 1; 0 = not known' CODEC(T64, ZSTD(1)),
    elements Int64 COMMENT 'its number of elements' CODEC(T64, ZSTD(1)),
    bytes Int64 COMMENT 'its size; bytes' CODEC(T64, ZSTD(1)),
    waiting Int32 COMMENT 'ranks that wait in it' CODEC(ZSTD(1)),
    step Int64 COMMENT 'step of the rank; -1 = none' CODEC(Delta(8), ZSTD(1)),
    note String COMMENT 'what is known of it, a sentence' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
PRIMARY KEY (job, run, episode, revision, rank)
ORDER BY (job, run, episode, revision, rank, attempt_start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'jobs that stand still: a row for each rank that is named, and one (rank -1) for the job, whenever that changes';

-- Kernel names as people read them; rules: infra/clickhouse/kernel_names.py. The sink writes a name before the first row that has it.
CREATE TABLE IF NOT EXISTS {database}.kernel_names_versions
(
    name String COMMENT 'as in `kernels`' CODEC(ZSTD(1)),
    short LowCardinality(String) COMMENT 'short form; kernels that only apply another function name that too' CODEC(ZSTD(1)),
    family LowCardinality(String) COMMENT 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, communication = that of other libraries, copy, other' CODEC(ZSTD(1)),
    demangled String COMMENT 'C++ name; what is not mangled, as it is' CODEC(ZSTD(1)),
    rules UInt32 COMMENT 'version of the rules that named it' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(rules)
ORDER BY name
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'kernel names as people read them';

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
