-- Steps of all ranks of a run per second of their start: `steps` has 59 million rows an hour where 16,384 ranks make a
-- step a second. Filled from the steps that are stored, once: a repetition finds rows.
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
    durations AggregateFunction(quantilesDDIf(0.01, 0.5, 0.95, 0.99), UInt64, UInt8) COMMENT 'lengths, ns; quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)' CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(second)
ORDER BY (job, run, second)
SETTINGS index_granularity = 1024, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'steps of all ranks per job, run and second';

INSERT INTO {database}.steps_per_second
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
    quantilesDDIfState(0.01, 0.5, 0.95, 0.99)(toUInt64(greatest(s.gpu_duration_ns, 0)), skipped = 0 AND s.gpu_duration_ns > 0) AS durations
FROM {database}.steps AS s
WHERE (SELECT count() FROM {database}.steps_per_second) = 0
GROUP BY job, run, second;

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
    durations AggregateFunction(quantilesDDIf(0.01, 0.5, 0.95, 0.99), UInt64, UInt8) COMMENT 'lengths, ns; quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)'
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
    quantilesDDIfState(0.01, 0.5, 0.95, 0.99)(toUInt64(greatest(s.gpu_duration_ns, 0)), skipped = 0 AND s.gpu_duration_ns > 0) AS durations
FROM {database}.steps AS s
GROUP BY job, run, second;
