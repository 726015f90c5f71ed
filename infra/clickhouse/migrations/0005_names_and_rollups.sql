-- What dashboards read: kernel names in short, and rollups. Rollups belong to the insert that they count: a repeated insert
-- (same token) does nothing to them, because each has a deduplication window of its own and the sink's inserts set
-- deduplicate_blocks_in_dependent_materialized_views. Rows with the same key may not be merged yet: sum(), max(), and
-- quantilesDDMerge(...) over them, never read single rows.

-- Kernel names as people read them; rules: infra/clickhouse/kernel_names.py. The sink writes a name before the first row that has it.
CREATE TABLE IF NOT EXISTS {database}.kernel_names_versions
(
    name String COMMENT 'as in `kernels`' CODEC(ZSTD(1)),
    short LowCardinality(String) COMMENT 'short form; kernels that only apply another function name that too' CODEC(ZSTD(1)),
    family LowCardinality(String) COMMENT 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, copy, other' CODEC(ZSTD(1)),
    demangled String COMMENT 'C++ name; what is not mangled, as it is' CODEC(ZSTD(1)),
    rules UInt32 COMMENT 'version of the rules that named it' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(rules)
ORDER BY name
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 0, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'kernel names as people read them';

CREATE OR REPLACE VIEW {database}.kernel_names
(
    name String COMMENT 'as in `kernels`',
    short LowCardinality(String) COMMENT 'short form; kernels that only apply another function name that too',
    family LowCardinality(String) COMMENT 'gemm, attention, convolution, normalisation, elementwise, reduction, embedding, optimizer, nccl, copy, other',
    demangled String COMMENT 'C++ name; what is not mangled, as it is',
    rules UInt32 COMMENT 'version of the rules that named it'
)
AS SELECT * FROM {database}.kernel_names_versions FINAL
COMMENT 'kernel names as people read them';

-- Kernels per job, run, minute, rank and kernel. The sketches of a row take 4 to 28 kB of memory, and a merge has two
-- granules of each of its parts there: with 8,192 rows a granule, 13 parts took more than the local engine has, again and
-- again.
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
    threads_per_block AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'threads in a block; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)' CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(minute)
ORDER BY (job, run, minute, rank, name)
SETTINGS index_granularity = 256, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
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
    threads_per_block AggregateFunction(quantilesDD(0.01, 0.5, 0.95, 0.99), UInt64) COMMENT 'threads in a block; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)'
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
    quantilesDDState(0.01, 0.5, 0.95, 0.99)(k.threads_per_block) AS threads_per_block
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
    graph_launches SimpleAggregateFunction(sum, UInt64) COMMENT 'launches out of CUDA graphs; sum' CODEC(T64, ZSTD(1))
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
    graph_launches UInt64 COMMENT 'launches out of CUDA graphs; sum'
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
    countIf(graph != 0) AS graph_launches
FROM {database}.kernels
GROUP BY job, run, rank, second;

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
    target String ALIAS transform(dst_kind, [1, 2, 3, 4, 5], ['pageable', 'pinned', 'device', 'array', 'managed'], '') COMMENT 'target memory as text, the same words'
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
    max_ns UInt64 COMMENT 'longest; ns; max'
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
    max(duration_ns) AS max_ns
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
    max_xid SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'largest XID seen; max' CODEC(ZSTD(1))
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
    max_xid Nullable(Int64) COMMENT 'largest XID seen; max'
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
    max(s.xid) AS max_xid
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
    sumIf(dropped_before, disposition IN ('stored', 'empty')) AS dropped_rows,
    sum(l.bytes) AS bytes,
    min(if(disposition = 'stored' AND l.time_min > toDateTime64(0, 9, 'UTC'), l.time_min, toDateTime64('2106-01-01', 9, 'UTC'))) AS time_min,
    max(if(disposition = 'stored', l.time_max, toDateTime64(0, 9, 'UTC'))) AS time_max,
    max(published) AS last_published,
    uniqExactIfState(rank, rank >= 0 AND disposition IN ('stored', 'empty') AND topic IN ('gpu.process.v1', 'gpu.step.v1', 'gpu.progress.v1', 'gpu.kernel.v1')) AS ranks,
    uniqExactIfState(toString(host), host != '' AND disposition IN ('stored', 'empty') AND topic IN ('gpu.process.v1', 'gpu.step.v1', 'gpu.progress.v1', 'gpu.kernel.v1')) AS hosts
FROM {database}.ledger AS l
GROUP BY job, run, topic, minute;

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
