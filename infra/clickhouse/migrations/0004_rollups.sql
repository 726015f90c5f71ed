-- What dashboards read instead of the raw tables. Rollups belong to the insert that they count: a repeated insert (same token)
-- does nothing to them, because each has a deduplication window of its own and the sink's inserts set
-- deduplicate_blocks_in_dependent_materialized_views. Rows with the same key may not be merged yet: sum(), max(), and
-- quantilesDDMerge(...) over them, never read single rows.
-- A row lives as long as the last record that it counts (last_published).
-- index_granularity: the sketches of a row take 4 to 28 kB of memory, and a merge has two granules of each of its parts there:
-- with 8,192 rows a granule, 13 parts took more than the local engine has, again and again.

-- Kernels per job, run, minute, rank and kernel. Dashboards mostly ask for all ranks together: beside each part lies the same
-- without the rank, and the server reads that where a question allows it (1/16 of the rows with 16 ranks, 1/1000 with 1000).
-- It is built again when parts merge, so it cannot differ from them.
CREATE TABLE IF NOT EXISTS {database}.kernels_per_minute
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    minute DateTime('UTC') COMMENT 'minute in which they started' CODEC(Delta(4), ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    name LowCardinality(String) COMMENT 'kernel name; short form and family: `kernel_names`' CODEC(ZSTD(1)),
    host SimpleAggregateFunction(anyLast, LowCardinality(String)) COMMENT 'host name; any of them' CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) COMMENT 'launches; sum' CODEC(T64, ZSTD(1)),
    gpu_ns SimpleAggregateFunction(sum, UInt64) COMMENT 'sum of durations; ns; sum' CODEC(T64, ZSTD(1)),
    min_ns SimpleAggregateFunction(min, UInt64) COMMENT 'shortest; ns; min' CODEC(T64, ZSTD(1)),
    max_ns SimpleAggregateFunction(max, UInt64) COMMENT 'longest; ns; max' CODEC(T64, ZSTD(1)),
    graph_launches SimpleAggregateFunction(sum, UInt64) COMMENT 'launches out of CUDA graphs; sum' CODEC(T64, ZSTD(1)),
    registers SimpleAggregateFunction(max, UInt16) COMMENT 'most registers per thread; max' CODEC(T64, ZSTD(1)),
    shared_bytes SimpleAggregateFunction(max, UInt32) COMMENT 'most shared memory of a block, static and dynamic; bytes; max' CODEC(T64, ZSTD(1)),
    durations AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'durations, ns; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations)' CODEC(ZSTD(1)),
    blocks AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'blocks in the grid; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks)' CODEC(ZSTD(1)),
    threads_per_block AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'threads in a block; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1)),
    PROJECTION all_ranks
    (
        SELECT
            job,
            run,
            minute,
            name,
            sum(launches),
            sum(gpu_ns),
            max(max_ns),
            sum(graph_launches),
            max(registers),
            max(shared_bytes),
            quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations),
            quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks),
            quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)
        GROUP BY job, run, minute, name
    )
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(minute)
ORDER BY (job, run, minute, rank, name)
SETTINGS index_granularity = 256, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1, deduplicate_merge_projection_mode = 'rebuild'
COMMENT 'kernels per job, run, minute, rank and kernel';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.kernels_per_minute_from_kernels TO {database}.kernels_per_minute
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    minute DateTime('UTC') COMMENT 'minute in which they started',
    rank Int32 COMMENT 'global rank',
    name LowCardinality(String) COMMENT 'kernel name; short form and family: `kernel_names`',
    host String COMMENT 'host name; any of them',
    launches UInt64 COMMENT 'launches; sum',
    gpu_ns UInt64 COMMENT 'sum of durations; ns; sum',
    min_ns UInt64 COMMENT 'shortest; ns; min',
    max_ns UInt64 COMMENT 'longest; ns; max',
    graph_launches UInt64 COMMENT 'launches out of CUDA graphs; sum',
    registers UInt16 COMMENT 'most registers per thread; max',
    shared_bytes UInt32 COMMENT 'most shared memory of a block, static and dynamic; bytes; max',
    durations AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'durations, ns; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations)',
    blocks AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'blocks in the grid; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks)',
    threads_per_block AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'threads in a block; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    toDateTime(toStartOfMinute(start), 'UTC') AS minute,
    rank,
    name,
    anyLast(host) AS host,
    count() AS launches,
    sum(duration_ns) AS gpu_ns,
    min(duration_ns) AS min_ns,
    max(duration_ns) AS max_ns,
    countIf(graph != 0) AS graph_launches,
    max(k.registers) AS registers,
    max(toUInt32(greatest(shared_static, 0) + greatest(shared_dynamic, 0))) AS shared_bytes,
    quantilesDDState(0.01, 0.5, 0.95, 0.99)(duration_ns) AS durations,
    quantilesDDState(0.01, 0.5, 0.95, 0.99)(k.blocks) AS blocks,
    quantilesDDState(0.01, 0.5, 0.95, 0.99)(k.threads_per_block) AS threads_per_block,
    max(published) AS last_published
FROM {database}.kernels AS k
GROUP BY job, run, minute, rank, name;

-- Kernels per job, run, rank and second of their start.
CREATE TABLE IF NOT EXISTS {database}.ranks_per_second
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    second DateTime('UTC') COMMENT 'second in which they started' CODEC(Delta(4), ZSTD(1)),
    host SimpleAggregateFunction(anyLast, LowCardinality(String)) COMMENT 'host name; any of them' CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) COMMENT 'launches; sum' CODEC(T64, ZSTD(1)),
    gpu_ns SimpleAggregateFunction(sum, UInt64) COMMENT 'sum of durations; ns; sum' CODEC(T64, ZSTD(1)),
    graph_launches SimpleAggregateFunction(sum, UInt64) COMMENT 'launches out of CUDA graphs; sum' CODEC(T64, ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT second COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(second)
ORDER BY (job, run, rank, second)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'kernels per job, run, rank and second';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.ranks_per_second_from_kernels TO {database}.ranks_per_second
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    rank Int32 COMMENT 'global rank',
    second DateTime('UTC') COMMENT 'second in which they started',
    host String COMMENT 'host name; any of them',
    launches UInt64 COMMENT 'launches; sum',
    gpu_ns UInt64 COMMENT 'sum of durations; ns; sum',
    graph_launches UInt64 COMMENT 'launches out of CUDA graphs; sum',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    rank,
    toDateTime(start, 'UTC') AS second,
    anyLast(host) AS host,
    count() AS launches,
    sum(duration_ns) AS gpu_ns,
    countIf(graph != 0) AS graph_launches,
    max(published) AS last_published
FROM {database}.kernels
GROUP BY job, run, rank, second;

-- Steps of all ranks of a run per second of their start: `steps` has 59 million rows an hour where 16,384 ranks make a
-- step a second.
CREATE TABLE IF NOT EXISTS {database}.steps_per_second
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    second DateTime('UTC') COMMENT 'second in which they started on the host' CODEC(Delta(4), ZSTD(1)),
    steps SimpleAggregateFunction(sum, UInt64) COMMENT 'steps of all ranks; sum' CODEC(T64, ZSTD(1)),
    known_steps SimpleAggregateFunction(sum, UInt64) COMMENT 'those whose budget is known; what follows is of them; sum' CODEC(T64, ZSTD(1)),
    gpu_duration_ns SimpleAggregateFunction(sum, Int64) COMMENT 'length of the budget intervals; ns; sum' CODEC(T64, ZSTD(1)),
    compute_ns SimpleAggregateFunction(sum, Int64) COMMENT 'kernels that are not communication; ns; sum' CODEC(T64, ZSTD(1)),
    copy_ns SimpleAggregateFunction(sum, Int64) COMMENT 'copies that no kernel but communication covers; ns; sum' CODEC(T64, ZSTD(1)),
    comm_exposed_ns SimpleAggregateFunction(sum, Int64) COMMENT 'communication covered by neither compute nor copies; ns; sum' CODEC(T64, ZSTD(1)),
    idle_ns SimpleAggregateFunction(sum, Int64) COMMENT 'nothing ran on the GPU; ns; sum' CODEC(T64, ZSTD(1)),
    min_ns SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'shortest; ns; min' CODEC(ZSTD(1)),
    max_ns SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'longest; ns; max' CODEC(ZSTD(1)),
    durations AggregateFunction(quantilesDDIf(0.01, 0.5, 0.95, 0.99), UInt64, UInt8) COMMENT 'lengths, ns; quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT second COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(second)
ORDER BY (job, run, second)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'steps of all ranks per job, run and second';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.steps_per_second_from_steps TO {database}.steps_per_second
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    second DateTime('UTC') COMMENT 'second in which they started on the host',
    steps UInt64 COMMENT 'steps of all ranks; sum',
    known_steps UInt64 COMMENT 'those whose budget is known; what follows is of them; sum',
    gpu_duration_ns Int64 COMMENT 'length of the budget intervals; ns; sum',
    compute_ns Int64 COMMENT 'kernels that are not communication; ns; sum',
    copy_ns Int64 COMMENT 'copies that no kernel but communication covers; ns; sum',
    comm_exposed_ns Int64 COMMENT 'communication covered by neither compute nor copies; ns; sum',
    idle_ns Int64 COMMENT 'nothing ran on the GPU; ns; sum',
    min_ns Nullable(Int64) COMMENT 'shortest; ns; min',
    max_ns Nullable(Int64) COMMENT 'longest; ns; max',
    durations AggregateFunction(quantilesDDIf(0.01, 0.5, 0.95, 0.99), UInt64, UInt8) COMMENT 'lengths, ns; quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    toDateTime(start, 'UTC') AS second,
    count() AS steps,
    countIf(skipped = 0 AND s.gpu_duration_ns > 0) AS known_steps,
    sumIf(s.gpu_duration_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS gpu_duration_ns,
    sumIf(s.compute_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS compute_ns,
    sumIf(s.copy_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS copy_ns,
    sumIf(s.comm_exposed_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS comm_exposed_ns,
    sumIf(s.idle_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS idle_ns,
    minOrNullIf(s.gpu_duration_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS min_ns,
    maxOrNullIf(s.gpu_duration_ns, skipped = 0 AND s.gpu_duration_ns > 0) AS max_ns,
    quantilesDDIfState(0.01, 0.5, 0.95, 0.99)(toUInt64(greatest(s.gpu_duration_ns, 0)), skipped = 0 AND s.gpu_duration_ns > 0) AS durations,
    max(published) AS last_published
FROM {database}.steps AS s
GROUP BY job, run, second;

-- Copies and memsets per job, run, minute, rank and kinds.
CREATE TABLE IF NOT EXISTS {database}.memcpys_per_minute
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    minute DateTime('UTC') COMMENT 'minute in which they started' CODEC(Delta(4), ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    kind UInt8 COMMENT 'CUPTI copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset' CODEC(ZSTD(1)),
    src_kind UInt8 COMMENT 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none' CODEC(ZSTD(1)),
    dst_kind UInt8 COMMENT 'target memory kind, same numbers' CODEC(ZSTD(1)),
    host SimpleAggregateFunction(anyLast, LowCardinality(String)) COMMENT 'host name; any of them' CODEC(ZSTD(1)),
    copies SimpleAggregateFunction(sum, UInt64) COMMENT 'copies; sum' CODEC(T64, ZSTD(1)),
    bytes SimpleAggregateFunction(sum, UInt64) COMMENT 'bytes; sum' CODEC(T64, ZSTD(1)),
    busy_ns SimpleAggregateFunction(sum, UInt64) COMMENT 'sum of durations; ns; sum' CODEC(T64, ZSTD(1)),
    max_ns SimpleAggregateFunction(max, UInt64) COMMENT 'longest; ns; max' CODEC(T64, ZSTD(1)),
    direction String ALIAS transform(kind, [1, 2, 8, 10, 64], ['HtoD', 'DtoH', 'DtoD', 'PtoP', 'memset'], 'other') COMMENT 'kind as text: HtoD, DtoH, DtoD, PtoP, memset, other',
    source String ALIAS transform(src_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'source memory as text: pageable, pinned, device, array, managed',
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'target memory as text, the same words',
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(minute)
ORDER BY (job, run, minute, rank, kind, src_kind, dst_kind)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'copies per job, run, minute, rank and kinds';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.memcpys_per_minute_from_memcpys TO {database}.memcpys_per_minute
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    minute DateTime('UTC') COMMENT 'minute in which they started',
    rank Int32 COMMENT 'global rank',
    kind UInt8 COMMENT 'CUPTI copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset',
    src_kind UInt8 COMMENT 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none',
    dst_kind UInt8 COMMENT 'target memory kind, same numbers',
    host String COMMENT 'host name; any of them',
    copies UInt64 COMMENT 'copies; sum',
    bytes UInt64 COMMENT 'bytes; sum',
    busy_ns UInt64 COMMENT 'sum of durations; ns; sum',
    max_ns UInt64 COMMENT 'longest; ns; max',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    toDateTime(toStartOfMinute(start), 'UTC') AS minute,
    rank,
    kind,
    src_kind,
    dst_kind,
    anyLast(host) AS host,
    count() AS copies,
    sum(m.bytes) AS bytes,
    sum(duration_ns) AS busy_ns,
    max(duration_ns) AS max_ns,
    max(published) AS last_published
FROM {database}.memcpys AS m
GROUP BY job, run, minute, rank, kind, src_kind, dst_kind;

-- GPU samples per job, run, minute and GPU. Averages are states: avgMerge(power_mw).
CREATE TABLE IF NOT EXISTS {database}.devices_per_minute
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    minute DateTime('UTC') COMMENT 'minute of the samples' CODEC(Delta(4), ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_index Int32 COMMENT 'index of the GPU on its host' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    rank SimpleAggregateFunction(anyLast, Int32) COMMENT 'global rank; -1 = no job ran on the GPU; any of them' CODEC(ZSTD(1)),
    samples SimpleAggregateFunction(sum, UInt64) COMMENT 'samples; sum' CODEC(T64, ZSTD(1)),
    util_gpu AggregateFunction(avg, Nullable(Int64)) COMMENT 'time a kernel ran; %; avgMerge' CODEC(ZSTD(1)),
    util_memory AggregateFunction(avg, Nullable(Int64)) COMMENT 'memory controller busy; %; avgMerge' CODEC(ZSTD(1)),
    power_mw AggregateFunction(avg, Nullable(Int64)) COMMENT 'mW; avgMerge' CODEC(ZSTD(1)),
    pcie_rx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge' CODEC(ZSTD(1)),
    pcie_tx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge' CODEC(ZSTD(1)),
    nvlink_rx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge' CODEC(ZSTD(1)),
    nvlink_tx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge' CODEC(ZSTD(1)),
    max_memory_used SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'bytes; max' CODEC(ZSTD(1)),
    memory_total SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'bytes; max' CODEC(ZSTD(1)),
    max_temperature SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'degrees Celsius; max' CODEC(ZSTD(1)),
    min_sm_clock SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'MHz; min' CODEC(ZSTD(1)),
    max_sm_clock SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'MHz; max' CODEC(ZSTD(1)),
    throttle_reasons SimpleAggregateFunction(groupBitOr, UInt64) COMMENT 'NVML clock event reasons seen, bit mask; groupBitOr' CODEC(ZSTD(1)),
    ecc_uncorrected SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'errors; max' CODEC(ZSTD(1)),
    max_xid SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'largest XID seen; max' CODEC(ZSTD(1)),
    xids SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) DEFAULT if(ifNull(max_xid, 0) > 0, [assumeNotNull(max_xid)], []) COMMENT 'all XIDs seen; groupUniqArrayArray' CODEC(ZSTD(1)),
    max_memory_temperature SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'of the memory (HBM); degrees Celsius; max' CODEC(ZSTD(1)),
    sm_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'SMs with at least one warp (GPM); %; avgMerge' CODEC(ZSTD(1)),
    sm_occupancy AggregateFunction(avg, Nullable(Float64)) COMMENT 'resident warps of all that fit (GPM); %; avgMerge' CODEC(ZSTD(1)),
    tensor_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'tensor cores busy, any type (GPM); %; avgMerge' CODEC(ZSTD(1)),
    dram_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'bandwidth of the device memory in use (GPM); %; avgMerge' CODEC(ZSTD(1)),
    pcie_replays SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'PCIe packets sent again since the driver was loaded; max' CODEC(ZSTD(1)),
    remapped_correctable SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'memory rows remapped after correctable errors; max' CODEC(ZSTD(1)),
    remapped_uncorrectable SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'memory rows remapped after uncorrectable errors; max' CODEC(ZSTD(1)),
    remap_pending SimpleAggregateFunction(max, Nullable(Int64)) COMMENT '1 = a row is remapped at the next reset; max' CODEC(ZSTD(1)),
    remap_failure SimpleAggregateFunction(max, Nullable(Int64)) COMMENT '1 = remapping a row failed; max' CODEC(ZSTD(1)),
    ecc_corrected SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'corrected errors since the driver was loaded; max' CODEC(ZSTD(1)),
    nvlink_replays SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'packets of all links sent again; max' CODEC(ZSTD(1)),
    nvlink_recoveries SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'recoveries of all links; max' CODEC(ZSTD(1)),
    min_nvlink_active SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'NVLink links that were up; min' CODEC(ZSTD(1)),
    lost SimpleAggregateFunction(max, Nullable(Int64)) COMMENT '1 = the GPU did not answer; max' CODEC(ZSTD(1)),
    min_power_limit_mw SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'power that the GPU may draw, the lowest limit in force; mW; min' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (job, run, minute, host, gpu_index, gpu_uuid)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'GPU samples per job, run, minute and GPU';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.devices_per_minute_from_samples TO {database}.devices_per_minute
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    minute DateTime('UTC') COMMENT 'minute of the samples',
    host LowCardinality(String) COMMENT 'host name',
    gpu_index Int32 COMMENT 'index of the GPU on its host',
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU',
    rank Int32 COMMENT 'global rank; -1 = no job ran on the GPU; any of them',
    samples UInt64 COMMENT 'samples; sum',
    util_gpu AggregateFunction(avg, Nullable(Int64)) COMMENT 'time a kernel ran; %; avgMerge',
    util_memory AggregateFunction(avg, Nullable(Int64)) COMMENT 'memory controller busy; %; avgMerge',
    power_mw AggregateFunction(avg, Nullable(Int64)) COMMENT 'mW; avgMerge',
    pcie_rx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge',
    pcie_tx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge',
    nvlink_rx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge',
    nvlink_tx_kbps AggregateFunction(avg, Nullable(Int64)) COMMENT 'kB/s; avgMerge',
    max_memory_used Nullable(Int64) COMMENT 'bytes; max',
    memory_total Nullable(Int64) COMMENT 'bytes; max',
    max_temperature Nullable(Int64) COMMENT 'degrees Celsius; max',
    min_sm_clock Nullable(Int64) COMMENT 'MHz; min',
    max_sm_clock Nullable(Int64) COMMENT 'MHz; max',
    throttle_reasons UInt64 COMMENT 'NVML clock event reasons seen, bit mask; groupBitOr',
    ecc_uncorrected Nullable(Int64) COMMENT 'errors; max',
    max_xid Nullable(Int64) COMMENT 'largest XID seen; max',
    xids Array(Int64) COMMENT 'all XIDs seen; groupUniqArrayArray',
    max_memory_temperature Nullable(Int64) COMMENT 'of the memory (HBM); degrees Celsius; max',
    sm_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'SMs with at least one warp (GPM); %; avgMerge',
    sm_occupancy AggregateFunction(avg, Nullable(Float64)) COMMENT 'resident warps of all that fit (GPM); %; avgMerge',
    tensor_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'tensor cores busy, any type (GPM); %; avgMerge',
    dram_active AggregateFunction(avg, Nullable(Float64)) COMMENT 'bandwidth of the device memory in use (GPM); %; avgMerge',
    pcie_replays Nullable(Int64) COMMENT 'PCIe packets sent again since the driver was loaded; max',
    remapped_correctable Nullable(Int64) COMMENT 'memory rows remapped after correctable errors; max',
    remapped_uncorrectable Nullable(Int64) COMMENT 'memory rows remapped after uncorrectable errors; max',
    remap_pending Nullable(Int64) COMMENT '1 = a row is remapped at the next reset; max',
    remap_failure Nullable(Int64) COMMENT '1 = remapping a row failed; max',
    ecc_corrected Nullable(Int64) COMMENT 'corrected errors since the driver was loaded; max',
    nvlink_replays Nullable(Int64) COMMENT 'packets of all links sent again; max',
    nvlink_recoveries Nullable(Int64) COMMENT 'recoveries of all links; max',
    min_nvlink_active Nullable(Int64) COMMENT 'NVLink links that were up; min',
    lost Nullable(Int64) COMMENT '1 = the GPU did not answer; max',
    min_power_limit_mw Nullable(Int64) COMMENT 'power that the GPU may draw, the lowest limit in force; mW; min',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    toDateTime(toStartOfMinute(time), 'UTC') AS minute,
    host,
    gpu_index,
    gpu_uuid,
    anyLast(s.rank) AS rank,
    count() AS samples,
    avgState(s.util_gpu) AS util_gpu,
    avgState(s.util_memory) AS util_memory,
    avgState(s.power_mw) AS power_mw,
    avgState(s.pcie_rx_kbps) AS pcie_rx_kbps,
    avgState(s.pcie_tx_kbps) AS pcie_tx_kbps,
    avgState(s.nvlink_rx_kbps) AS nvlink_rx_kbps,
    avgState(s.nvlink_tx_kbps) AS nvlink_tx_kbps,
    max(s.memory_used) AS max_memory_used,
    max(s.memory_total) AS memory_total,
    max(s.temperature) AS max_temperature,
    min(s.sm_clock) AS min_sm_clock,
    max(s.sm_clock) AS max_sm_clock,
    groupBitOr(toUInt64(ifNull(s.throttle_reasons, 0))) AS throttle_reasons,
    max(s.ecc_uncorrected) AS ecc_uncorrected,
    max(s.xid) AS max_xid,
    groupUniqArray(assumeNotNull(s.xid)) FILTER (WHERE s.xid > 0) AS xids,
    max(s.memory_temperature) AS max_memory_temperature,
    avgState(s.sm_active) AS sm_active,
    avgState(s.sm_occupancy) AS sm_occupancy,
    avgState(s.tensor_active) AS tensor_active,
    avgState(s.dram_active) AS dram_active,
    max(s.pcie_replays) AS pcie_replays,
    max(s.remapped_correctable) AS remapped_correctable,
    max(s.remapped_uncorrectable) AS remapped_uncorrectable,
    max(s.remap_pending) AS remap_pending,
    max(s.remap_failure) AS remap_failure,
    max(s.ecc_corrected) AS ecc_corrected,
    max(s.nvlink_replays) AS nvlink_replays,
    max(s.nvlink_recoveries) AS nvlink_recoveries,
    min(s.nvlink_active) AS min_nvlink_active,
    max(s.lost) AS lost,
    min(s.power_limit_mw) AS min_power_limit_mw,
    max(published) AS last_published
FROM {database}.device_samples AS s
GROUP BY job, run, minute, host, gpu_index, gpu_uuid;

-- Kafka records per topic, run and minute of publication: what came, what was lost, and when the run took place. Ranks and
-- hosts are kept of the topics that tell of each: a set of 16,384 ranks and their hosts is 200 kB, and a merge has two
-- granules of each part in memory.
CREATE TABLE IF NOT EXISTS {database}.records_per_minute
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    topic LowCardinality(String) COMMENT 'Kafka topic' CODEC(ZSTD(1)),
    minute DateTime('UTC') COMMENT 'minute in which Kafka got them' CODEC(Delta(4), ZSTD(1)),
    records SimpleAggregateFunction(sum, UInt64) COMMENT 'records; sum' CODEC(T64, ZSTD(1)),
    dead_letters SimpleAggregateFunction(sum, UInt64) COMMENT 'records that could not be read; sum' CODEC(T64, ZSTD(1)),
    duplicates SimpleAggregateFunction(sum, UInt64) COMMENT 'records stored already from another offset; sum' CODEC(T64, ZSTD(1)),
    rows SimpleAggregateFunction(sum, UInt64) COMMENT 'rows stored; sum' CODEC(T64, ZSTD(1)),
    dropped_rows SimpleAggregateFunction(sum, Int64) COMMENT 'rows lost before publication; sum' CODEC(T64, ZSTD(1)),
    bytes SimpleAggregateFunction(sum, UInt64) COMMENT 'size of the records; bytes; sum' CODEC(T64, ZSTD(1)),
    time_min SimpleAggregateFunction(min, DateTime64(9, 'UTC')) COMMENT 'earliest time of their rows; min' CODEC(ZSTD(1)),
    time_max SimpleAggregateFunction(max, DateTime64(9, 'UTC')) COMMENT 'latest time of their rows; max' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when Kafka got the last one; max' CODEC(ZSTD(1)),
    ranks AggregateFunction(uniqExactIf, Int32, UInt8) COMMENT 'ranks; uniqExactIfMerge(ranks)' CODEC(ZSTD(1)),
    hosts AggregateFunction(uniqExactIf, String, UInt8) COMMENT 'hosts; uniqExactIfMerge(hosts)' CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (job, run, topic, minute)
SETTINGS index_granularity = 64, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Kafka records per topic, run and minute';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.records_per_minute_from_ledger TO {database}.records_per_minute
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    topic LowCardinality(String) COMMENT 'Kafka topic',
    minute DateTime('UTC') COMMENT 'minute in which Kafka got them',
    records UInt64 COMMENT 'records; sum',
    dead_letters UInt64 COMMENT 'records that could not be read; sum',
    duplicates UInt64 COMMENT 'records stored already from another offset; sum',
    rows UInt64 COMMENT 'rows stored; sum',
    dropped_rows Int64 COMMENT 'rows lost before publication; sum',
    bytes UInt64 COMMENT 'size of the records; bytes; sum',
    time_min DateTime64(9, 'UTC') COMMENT 'earliest time of their rows; min',
    time_max DateTime64(9, 'UTC') COMMENT 'latest time of their rows; max',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max',
    ranks AggregateFunction(uniqExactIf, Int32, UInt8) COMMENT 'ranks; uniqExactIfMerge(ranks)',
    hosts AggregateFunction(uniqExactIf, String, UInt8) COMMENT 'hosts; uniqExactIfMerge(hosts)'
)
AS
SELECT
    job,
    run,
    topic,
    toDateTime(toStartOfMinute(published), 'UTC') AS minute,
    count() AS records,
    countIf(disposition = 'dead_letter') AS dead_letters,
    countIf(disposition = 'duplicate') AS duplicates,
    sumIf(l.rows, disposition = 'stored') AS rows,
    sumIf(dropped_before, disposition IN ('stored', 'empty', 'expired')) AS dropped_rows,
    sum(l.bytes) AS bytes,
    min(if(disposition = 'stored' AND l.time_min > toDateTime64(0, 9, 'UTC'), l.time_min, toDateTime64('2106-01-01', 9, 'UTC'))) AS time_min,
    max(if(disposition = 'stored', l.time_max, toDateTime64(0, 9, 'UTC'))) AS time_max,
    max(published) AS last_published,
    uniqExactIfState(rank, rank >= 0 AND disposition IN ('stored', 'empty') AND topic IN ('gpu.process.v1', 'gpu.step.v1', 'gpu.progress.v1', 'gpu.kernel.v1')) AS ranks,
    uniqExactIfState(toString(host), host != '' AND disposition IN ('stored', 'empty') AND topic IN ('gpu.process.v1', 'gpu.step.v1', 'gpu.progress.v1', 'gpu.kernel.v1')) AS hosts
FROM {database}.ledger AS l
GROUP BY job, run, topic, minute;

-- Evaluations of each run, and the steps that they have evaluated: the view `stragglers` (0005) decides by them which is in force.
CREATE TABLE IF NOT EXISTS {database}.evaluations
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known' CODEC(Delta(8), ZSTD(1)),
    evaluation LowCardinality(String) COMMENT 'app id of the stream worker and its steps of a window; empty = not known' CODEC(ZSTD(1)),
    begun SimpleAggregateFunction(min, DateTime64(3, 'UTC')) COMMENT 'when Kafka got its first verdict; min' CODEC(ZSTD(1)),
    steps AggregateFunction(groupBitmap, UInt64) COMMENT 'steps that it has evaluated: those of windows with a verdict on the job or a named rank' CODEC(ZSTD(1)),
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when Kafka got the last one; max' CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
PRIMARY KEY (job, run, evaluation)
ORDER BY (job, run, evaluation, attempt_start)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'evaluations of runs; in `stragglers` the newest begun is in force for windows of which it has evaluated half of the steps';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.evaluations_from_verdicts TO {database}.evaluations
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run',
    attempt_start DateTime64(9, 'UTC') COMMENT 'which attempt of the run: start of its first process; 1970 = not known',
    evaluation LowCardinality(String) COMMENT 'app id of the stream worker and its steps of a window; empty = not known',
    begun DateTime64(3, 'UTC') COMMENT 'when Kafka got its first verdict; min',
    steps AggregateFunction(groupBitmap, UInt64) COMMENT 'steps that it has evaluated: those of windows with a verdict on the job or a named rank',
    last_published DateTime64(3, 'UTC') COMMENT 'when Kafka got the last one; max'
)
AS
SELECT
    job,
    run,
    attempt_start,
    evaluation,
    min(published) AS begun,
    groupBitmapState(step) AS steps,
    max(published) AS last_published
FROM {database}.stragglers_versions AS s
-- Of the other rows no steps, and no array: their steps may be anything.
ARRAY JOIN range(
    toUInt64(s.first_step),
    if(s.first_step >= 0 AND s.last_step >= s.first_step AND s.last_step - s.first_step < 100000 AND (severity > 0 OR rank = -1 AND severity = 0), toUInt64(s.last_step + 1), 0)
) AS step
GROUP BY job, run, attempt_start, evaluation;
