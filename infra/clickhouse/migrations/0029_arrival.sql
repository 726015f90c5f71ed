-- Retention counts from when Kafka got a record, not from the time of its rows: what an agent publishes after a long outage,
-- and what comes back out of an archive, is kept as long as what is new. Rows from before this migration are taken for
-- published when they happened, as retention took them so far.
ALTER TABLE {database}.kernels ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER graph_node;
ALTER TABLE {database}.memcpys ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER graph;
ALTER TABLE {database}.collectives ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER covered_ns;
ALTER TABLE {database}.steps ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER skipped;
ALTER TABLE {database}.ranges ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER step;
ALTER TABLE {database}.device_samples ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER lost;
ALTER TABLE {database}.host_samples ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER main_gil_ns;
ALTER TABLE {database}.network_samples ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER congestion_marks;
ALTER TABLE {database}.checks ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER expected;
ALTER TABLE {database}.stacks ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT time COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER caller;
ALTER TABLE {database}.launches ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER sample_age_ns;
ALTER TABLE {database}.stalls ADD COLUMN IF NOT EXISTS
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)) AFTER cycles;

-- A rollup's row lives as long as the last record that it counts.
ALTER TABLE {database}.kernels_per_minute ADD COLUMN IF NOT EXISTS
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1));
ALTER TABLE {database}.ranks_per_second ADD COLUMN IF NOT EXISTS
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT second COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1));
ALTER TABLE {database}.memcpys_per_minute ADD COLUMN IF NOT EXISTS
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1));
ALTER TABLE {database}.devices_per_minute ADD COLUMN IF NOT EXISTS
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT minute COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1));
ALTER TABLE {database}.steps_per_second ADD COLUMN IF NOT EXISTS
    last_published SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT second COMMENT 'when Kafka got the last one; max' CODEC(Delta(8), ZSTD(1));

-- In place: no row is inserted between two views.
ALTER TABLE {database}.kernels_per_minute_from_kernels MODIFY QUERY
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
ALTER TABLE {database}.kernels_per_minute_from_kernels
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN minute 'minute in which they started',
    COMMENT COLUMN rank 'global rank',
    COMMENT COLUMN name 'kernel name; short form and family: `kernel_names`',
    COMMENT COLUMN host 'host name; any of them',
    COMMENT COLUMN launches 'launches; sum',
    COMMENT COLUMN gpu_ns 'sum of durations; ns; sum',
    COMMENT COLUMN min_ns 'shortest; ns; min',
    COMMENT COLUMN max_ns 'longest; ns; max',
    COMMENT COLUMN graph_launches 'launches out of CUDA graphs; sum',
    COMMENT COLUMN registers 'most registers per thread; max',
    COMMENT COLUMN shared_bytes 'most shared memory of a block, static and dynamic; bytes; max',
    COMMENT COLUMN durations 'durations, ns; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations)',
    COMMENT COLUMN blocks 'blocks in the grid; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks)',
    COMMENT COLUMN threads_per_block 'threads in a block; quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block)',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

ALTER TABLE {database}.ranks_per_second_from_kernels MODIFY QUERY
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
ALTER TABLE {database}.ranks_per_second_from_kernels
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN rank 'global rank',
    COMMENT COLUMN second 'second in which they started',
    COMMENT COLUMN host 'host name; any of them',
    COMMENT COLUMN launches 'launches; sum',
    COMMENT COLUMN gpu_ns 'sum of durations; ns; sum',
    COMMENT COLUMN graph_launches 'launches out of CUDA graphs; sum',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

ALTER TABLE {database}.memcpys_per_minute_from_memcpys MODIFY QUERY
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
ALTER TABLE {database}.memcpys_per_minute_from_memcpys
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN minute 'minute in which they started',
    COMMENT COLUMN rank 'global rank',
    COMMENT COLUMN kind 'CUPTI copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 64 = memset',
    COMMENT COLUMN src_kind 'source memory kind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed; 0 = none',
    COMMENT COLUMN dst_kind 'target memory kind, same numbers',
    COMMENT COLUMN host 'host name; any of them',
    COMMENT COLUMN copies 'copies; sum',
    COMMENT COLUMN bytes 'bytes; sum',
    COMMENT COLUMN busy_ns 'sum of durations; ns; sum',
    COMMENT COLUMN max_ns 'longest; ns; max',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

ALTER TABLE {database}.devices_per_minute_from_samples MODIFY QUERY
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
    max(published) AS last_published
FROM {database}.device_samples AS s
GROUP BY job, run, minute, host, gpu_index, gpu_uuid;
ALTER TABLE {database}.devices_per_minute_from_samples
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN minute 'minute of the samples',
    COMMENT COLUMN host 'host name',
    COMMENT COLUMN gpu_index 'index of the GPU on its host',
    COMMENT COLUMN gpu_uuid 'NVML UUID of the GPU',
    COMMENT COLUMN rank 'global rank; -1 = no job ran on the GPU; any of them',
    COMMENT COLUMN samples 'samples; sum',
    COMMENT COLUMN util_gpu 'time a kernel ran; %; avgMerge',
    COMMENT COLUMN util_memory 'memory controller busy; %; avgMerge',
    COMMENT COLUMN power_mw 'mW; avgMerge',
    COMMENT COLUMN pcie_rx_kbps 'kB/s; avgMerge',
    COMMENT COLUMN pcie_tx_kbps 'kB/s; avgMerge',
    COMMENT COLUMN nvlink_rx_kbps 'kB/s; avgMerge',
    COMMENT COLUMN nvlink_tx_kbps 'kB/s; avgMerge',
    COMMENT COLUMN max_memory_used 'bytes; max',
    COMMENT COLUMN memory_total 'bytes; max',
    COMMENT COLUMN max_temperature 'degrees Celsius; max',
    COMMENT COLUMN min_sm_clock 'MHz; min',
    COMMENT COLUMN max_sm_clock 'MHz; max',
    COMMENT COLUMN throttle_reasons 'NVML clock event reasons seen, bit mask; groupBitOr',
    COMMENT COLUMN ecc_uncorrected 'errors; max',
    COMMENT COLUMN max_xid 'largest XID seen; max',
    COMMENT COLUMN xids 'all XIDs seen; groupUniqArrayArray',
    COMMENT COLUMN max_memory_temperature 'of the memory (HBM); degrees Celsius; max',
    COMMENT COLUMN sm_active 'SMs with at least one warp (GPM); %; avgMerge',
    COMMENT COLUMN sm_occupancy 'resident warps of all that fit (GPM); %; avgMerge',
    COMMENT COLUMN tensor_active 'tensor cores busy, any type (GPM); %; avgMerge',
    COMMENT COLUMN dram_active 'bandwidth of the device memory in use (GPM); %; avgMerge',
    COMMENT COLUMN pcie_replays 'PCIe packets sent again since the driver was loaded; max',
    COMMENT COLUMN remapped_correctable 'memory rows remapped after correctable errors; max',
    COMMENT COLUMN remapped_uncorrectable 'memory rows remapped after uncorrectable errors; max',
    COMMENT COLUMN remap_pending '1 = a row is remapped at the next reset; max',
    COMMENT COLUMN remap_failure '1 = remapping a row failed; max',
    COMMENT COLUMN ecc_corrected 'corrected errors since the driver was loaded; max',
    COMMENT COLUMN nvlink_replays 'packets of all links sent again; max',
    COMMENT COLUMN nvlink_recoveries 'recoveries of all links; max',
    COMMENT COLUMN min_nvlink_active 'NVLink links that were up; min',
    COMMENT COLUMN lost '1 = the GPU did not answer; max',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

ALTER TABLE {database}.steps_per_second_from_steps MODIFY QUERY
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
ALTER TABLE {database}.steps_per_second_from_steps
    COMMENT COLUMN job 'job name',
    COMMENT COLUMN run 'one start of the job; ids and counts are per run',
    COMMENT COLUMN second 'second in which they started on the host',
    COMMENT COLUMN steps 'steps of all ranks; sum',
    COMMENT COLUMN known_steps 'those whose budget is known; what follows is of them; sum',
    COMMENT COLUMN gpu_duration_ns 'length of the budget intervals; ns; sum',
    COMMENT COLUMN compute_ns 'kernels that are not communication; ns; sum',
    COMMENT COLUMN copy_ns 'copies that no kernel but communication covers; ns; sum',
    COMMENT COLUMN comm_exposed_ns 'communication covered by neither compute nor copies; ns; sum',
    COMMENT COLUMN idle_ns 'nothing ran on the GPU; ns; sum',
    COMMENT COLUMN min_ns 'shortest; ns; min',
    COMMENT COLUMN max_ns 'longest; ns; max',
    COMMENT COLUMN durations 'lengths, ns; quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)',
    COMMENT COLUMN last_published 'when Kafka got the last one; max';

