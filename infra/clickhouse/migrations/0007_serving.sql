-- Inference engines: their iterations and requests, and what these show.

-- gpu.iteration.v1.
CREATE TABLE IF NOT EXISTS {database}.iterations
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    iteration Int64 COMMENT 'counts 0, 1, 2, ... in the process' CODEC(T64, ZSTD(1)),
    engine LowCardinality(String) COMMENT 'engine: vllm, sglang, tensorrt_llm, transformers, or the name that the caller of the API gave' CODEC(ZSTD(1)),
    role LowCardinality(String) COMMENT 'engine = the process chose the batch, and may have run it too; worker = it ran what an engine in another process chose' CODEC(ZSTD(1)),
    phase LowCardinality(String) COMMENT 'prefill, decode, mixed, speculative (decode of drafted tokens) or other' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'the host begins: the scheduler is called, or the batch is prepared' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'host time until its results are there; ns' CODEC(T64, ZSTD(1)),
    gap_ns Int64 COMMENT 'host time from the end of the iteration before to this start, where requests were left then; ns, 0 = none was left' CODEC(T64, ZSTD(1)),
    schedule_ns Nullable(Int64) COMMENT 'host time in the scheduler, part of duration_ns; ns, NULL = not known' CODEC(T64, ZSTD(1)),
    gpu_ns Nullable(Int64) COMMENT 'GPU time from its first work to the end of its last, in the stream of the model; ns, NULL = not known' CODEC(T64, ZSTD(1)),
    gpu_idle_ns Nullable(Int64) COMMENT 'GPU time from the end of the iteration before to the begin of this one in that stream; ns, NULL = not known' CODEC(T64, ZSTD(1)),
    requests Int32 COMMENT 'requests in the batch' CODEC(T64, ZSTD(1)),
    prefill_requests Int32 COMMENT 'of these, requests whose prompt was computed, in whole or in part' CODEC(T64, ZSTD(1)),
    prefill_tokens Int64 COMMENT 'tokens of prompts that were computed' CODEC(T64, ZSTD(1)),
    decode_tokens Int64 COMMENT 'other tokens that were computed; drafted ones count' CODEC(T64, ZSTD(1)),
    output_tokens Nullable(Int64) COMMENT 'tokens that requests got; NULL = not known' CODEC(T64, ZSTD(1)),
    draft_tokens Nullable(Int64) COMMENT 'drafted tokens among decode_tokens; NULL = not known' CODEC(T64, ZSTD(1)),
    waiting Nullable(Int32) COMMENT 'requests in the queue after the scheduler\'s choice; NULL = not known' CODEC(T64, ZSTD(1)),
    kv_used Nullable(Int64) COMMENT 'blocks of the KV cache in use; NULL = not known' CODEC(T64, ZSTD(1)),
    kv_total Nullable(Int64) COMMENT 'blocks of the KV cache; NULL = not known' CODEC(T64, ZSTD(1)),
    preempted Int32 COMMENT 'requests that lost their KV blocks in this iteration' CODEC(T64, ZSTD(1)),
    adapters LowCardinality(String) COMMENT 'tokens of each adapter (LoRA) as name=tokens, sorted by name, separated by a comma; empty = of the model alone' CODEC(ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(ZSTD(1)),
    tokens Int64 ALIAS prefill_tokens + decode_tokens COMMENT 'tokens that were computed',
    end DateTime64(9, 'UTC') ALIAS start + toIntervalNanosecond(duration_ns) COMMENT 'its results are there',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, rank, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'iterations of inference engines: one forward pass of the batch that the scheduler chose';

-- gpu.request.v1.
CREATE TABLE IF NOT EXISTS {database}.requests
(
    job LowCardinality(String) COMMENT 'job name' CODEC(ZSTD(1)),
    run LowCardinality(String) COMMENT 'one start of the job; ids and counts are per run' CODEC(ZSTD(1)),
    rank Int32 COMMENT 'global rank' CODEC(ZSTD(1)),
    host LowCardinality(String) COMMENT 'host name' CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) COMMENT 'NVML UUID of the GPU' CODEC(ZSTD(1)),
    process_id LowCardinality(String) COMMENT 'UUIDv5 of run, host, pid and start time' CODEC(ZSTD(1)),
    request String COMMENT 'id: 16 hex digits of the keyed hash of the engine\'s id; that id itself where the job allows it' CODEC(ZSTD(1)),
    traceparent String COMMENT 'W3C trace context that the caller sent; empty = none' CODEC(ZSTD(1)),
    engine LowCardinality(String) COMMENT 'engine, as in gpu.iteration.v1' CODEC(ZSTD(1)),
    model LowCardinality(String) COMMENT 'model as the engine names it, without its folder; empty = not known' CODEC(ZSTD(1)),
    adapter LowCardinality(String) COMMENT 'adapter (LoRA); empty = none' CODEC(ZSTD(1)),
    tenant LowCardinality(String) COMMENT 'tenant that the caller of the API gave; empty = none' CODEC(ZSTD(1)),
    route LowCardinality(String) COMMENT 'route that the caller of the API gave; empty = none' CODEC(ZSTD(1)),
    outcome LowCardinality(String) COMMENT 'stop, length, abort or error; other reasons as the engine names them; lost = the engine ended before' CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') COMMENT 'the engine took the request in' CODEC(Delta(8), T64, ZSTD(1)),
    duration_ns Int64 COMMENT 'until its last token; ns' CODEC(T64, ZSTD(1)),
    queue_ns Nullable(Int64) COMMENT 'from start_ns to its first iteration; ns, NULL = it had none' CODEC(T64, ZSTD(1)),
    ttft_ns Nullable(Int64) COMMENT 'from start_ns to its first token; ns, NULL = it got none' CODEC(T64, ZSTD(1)),
    prompt_tokens Nullable(Int64) COMMENT 'tokens of the prompt; NULL = not known' CODEC(T64, ZSTD(1)),
    cached_tokens Nullable(Int64) COMMENT 'of these, tokens whose KV blocks were there already; NULL = not known' CODEC(T64, ZSTD(1)),
    output_tokens Int64 COMMENT 'tokens it got' CODEC(T64, ZSTD(1)),
    iterations Int64 COMMENT 'iterations that computed tokens of it' CODEC(T64, ZSTD(1)),
    first_iteration Nullable(Int64) COMMENT 'number of the first one in its process; NULL = none' CODEC(T64, ZSTD(1)),
    last_iteration Nullable(Int64) COMMENT 'number of the last one; NULL = none' CODEC(T64, ZSTD(1)),
    preemptions Int32 COMMENT 'times that it lost its KV blocks' CODEC(T64, ZSTD(1)),
    gpu_ns Nullable(Int64) COMMENT 'its share of its iterations\' GPU time by tokens: an estimate; ns, NULL = not known' CODEC(T64, ZSTD(1)),
    prefill_gpu_ns Nullable(Int64) COMMENT 'of this, the share of its prompt; ns, NULL = not known' CODEC(T64, ZSTD(1)),
    host_ns Nullable(Int64) COMMENT 'its share of its iterations\' host time (duration_ns), likewise; ns' CODEC(T64, ZSTD(1)),
    published DateTime64(3, 'UTC') DEFAULT start COMMENT 'when Kafka got the record' CODEC(Delta(8), ZSTD(1)),
    _topic_partition LowCardinality(String) COMMENT 'Kafka topic id and partition the row came from' CODEC(ZSTD(1)),
    _offset UInt64 COMMENT 'offset of its record' CODEC(DoubleDelta, ZSTD(1)),
    _row UInt32 COMMENT 'number of the row in its record' CODEC(ZSTD(1)),
    tpot_ns Nullable(Float64) ALIAS if(output_tokens > 1, (duration_ns - ttft_ns) / (output_tokens - 1), NULL) COMMENT 'time of each token after the first; ns, NULL = there was none',
    end DateTime64(9, 'UTC') ALIAS start + toIntervalNanosecond(duration_ns) COMMENT 'it was over',
    INDEX by_offset _offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (job, start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = 100000,
    fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'requests of inference engines, each when it has ended; GPU time of each is an estimate';

-- A row a minute of each engine: what it did, and the shares of its time that verdicts judge.
CREATE OR REPLACE VIEW {database}.serving_minutes
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    host LowCardinality(String) COMMENT 'host of the engine',
    process_id LowCardinality(String) COMMENT 'process of the engine',
    engine LowCardinality(String) COMMENT 'engine',
    minute DateTime('UTC') COMMENT 'start of the minute, by the start of iterations',
    iterations UInt64 COMMENT 'iterations',
    batch Float64 COMMENT 'mean requests of an iteration',
    prefill_tokens Int64 COMMENT 'tokens of prompts that were computed',
    decode_tokens Int64 COMMENT 'other tokens that were computed',
    work_ns Int64 COMMENT 'time in which the engine had requests: iterations, and gaps between them; ns',
    prefill_gpu_ns Nullable(Int64) COMMENT 'GPU time of iterations with prompts alone; ns, NULL = not known',
    mixed_gpu_ns Nullable(Int64) COMMENT 'GPU time of iterations with prompts and other tokens; ns, NULL = not known',
    decode_gpu_ns Nullable(Int64) COMMENT 'GPU time of other iterations; ns, NULL = not known',
    starved_ns Int64 COMMENT 'time in which requests were there and the GPU had nothing of the engine to do; without GPU times that between iterations and in the scheduler; ns',
    schedule_ns Int64 COMMENT 'host time in the scheduler; ns',
    decode_ns Float64 COMMENT 'median host time of an iteration without prompts; ns',
    stall_ns Float64 COMMENT '95% of iterations that hold requests which decode, and compute prompts, take at most so long; ns, 0 = there was none',
    blocked Float64 COMMENT 'share of the time of requests that decode by which iterations with prompts are longer than those without',
    preempted Int64 COMMENT 'requests that lost their KV blocks',
    kv_share Float64 COMMENT 'largest share of the KV blocks in use; 0 = not known',
    waiting Int32 COMMENT 'longest queue; 0 = not known too',
    idle_with_queue_ns Int64 COMMENT 'the part of starved_ns before iterations with a queue; ns'
)
AS SELECT
    job, run, host, process_id, engine, minute,
    count() AS iterations,
    avg(i.requests) AS batch,
    sum(i.prefill_tokens) AS prefill_tokens,
    sum(i.decode_tokens) AS decode_tokens,
    sum(i.duration_ns + i.gap_ns) AS work_ns,
    if(count(i.gpu_ns) = 0, NULL, sumIf(ifNull(i.gpu_ns, 0), i.phase = 'prefill')) AS prefill_gpu_ns,
    if(count(i.gpu_ns) = 0, NULL, sumIf(ifNull(i.gpu_ns, 0), i.phase = 'mixed')) AS mixed_gpu_ns,
    if(count(i.gpu_ns) = 0, NULL, sumIf(ifNull(i.gpu_ns, 0), i.phase NOT IN ('prefill', 'mixed'))) AS decode_gpu_ns,
    sum(i.starved) AS starved_ns,
    sum(ifNull(i.schedule_ns, 0)) AS schedule_ns,
    ifNotFinite(any(i.decode_median), 0) AS decode_ns,
    ifNotFinite(quantileExactInclusiveIf(0.95)(i.duration_ns, i.decoding > 0 AND i.prefill_requests > 0), 0) AS stall_ns,
    ifNotFinite(sumIf(greatest(i.duration_ns - i.decode_median, 0) * i.decoding, i.prefill_requests > 0) / sum(i.duration_ns * i.decoding), 0) AS blocked,
    sum(i.preempted) AS preempted,
    max(ifNull(i.kv_used / nullIf(i.kv_total, 0), 0)) AS kv_share,
    toInt32(max(ifNull(i.waiting, 0))) AS waiting,
    sumIf(i.starved, ifNull(i.waiting, 0) > 0) AS idle_with_queue_ns
FROM (
    SELECT
        *,
        toStartOfMinute(toDateTime(start, 'UTC')) AS minute,
        -- Longer than the gap: no request was there. The first iteration of all has no iteration before it.
        toUnixTimestamp64Nano(start) - lagInFrame(toUnixTimestamp64Nano(start) + duration_ns, 1, 0) OVER of_engine AS pause_ns,
        -- A request that decodes while prompts are computed alone waits: the batch before tells how many.
        if(phase = 'prefill', lagInFrame(requests - prefill_requests, 1, 0) OVER of_engine, requests - prefill_requests) AS decoding,
        multiIf(gpu_idle_ns IS NULL, gap_ns + ifNull(schedule_ns, 0), pause_ns <= gap_ns, least(assumeNotNull(gpu_idle_ns), gap_ns + duration_ns), 0) AS starved,
        quantileExactInclusiveIf(0.5)(duration_ns, prefill_requests = 0) OVER (PARTITION BY job, run, process_id, toStartOfMinute(toDateTime(start, 'UTC'))) AS decode_median
    FROM {database}.iterations
    WHERE role = 'engine'
    WINDOW of_engine AS (PARTITION BY job, run, process_id ORDER BY iteration ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
) AS i
GROUP BY job, run, host, process_id, engine, minute
COMMENT 'a row a minute of each inference engine';

-- Verdicts about inference engines. Each threshold has its reason in docs/guide/inference.md.
CREATE OR REPLACE VIEW {database}.serving_verdicts
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    host LowCardinality(String) COMMENT 'host of the engine',
    process_id LowCardinality(String) COMMENT 'process of the engine',
    minute DateTime('UTC') COMMENT 'start of the minute',
    cause LowCardinality(String) COMMENT 'engine_starved: the host gives the GPU nothing though requests are there; prefill_blocks_decode: iterations with prompts hold up the requests that decode; kv_thrash: requests lose their KV blocks and are computed again',
    detail LowCardinality(String) COMMENT 'of engine_starved: scheduler, or between_iterations',
    share Float64 COMMENT 'share of the engine\'s time; of the time of requests that decode; preempted requests an iteration',
    severity LowCardinality(String) COMMENT 'suspect, or warning where the minute before had the cause too',
    evidence String COMMENT 'what was measured, a sentence'
)
AS SELECT
    job, run, host, process_id, minute, cause, detail, share,
    if(lagInFrame(toUInt32(minute), 1, 0) OVER (PARTITION BY job, run, process_id, cause ORDER BY minute ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) = toUInt32(minute) - 60, 'warning', 'suspect') AS severity,
    evidence
FROM (
    SELECT *, verdict.1 AS cause, verdict.2 AS detail, verdict.3 AS share, verdict.4 AS evidence
    FROM {database}.serving_minutes
    ARRAY JOIN arrayFilter(one -> one.1 != '', [
        (if(starved_ns >= 0.4 * work_ns AND work_ns >= 5000000000, 'engine_starved', ''),
         if(schedule_ns >= 0.6 * starved_ns, 'scheduler', 'between_iterations'), starved_ns / work_ns,
         concat('of ', toString(round(work_ns / 1e9, 1)), ' s with requests the GPU had nothing to do for ', toString(round(starved_ns / 1e9, 1)), ' s; ', toString(round(schedule_ns / 1e9, 1)), ' s were in the scheduler')),
        (if(blocked >= 0.25 AND stall_ns >= 5 * decode_ns AND decode_ns > 0, 'prefill_blocks_decode', ''), '', blocked,
         concat('an iteration takes ', toString(round(decode_ns / 1e6, 1)), ' ms without prompts and up to ', toString(round(stall_ns / 1e6, 1)), ' ms with them, which is ', toString(round(100 * blocked)), '% of the time of requests that decode')),
        (if(preempted >= 10 AND preempted >= 0.02 * iterations, 'kv_thrash', ''), '', preempted / iterations,
         concat(toString(preempted), ' requests lost their KV blocks in ', toString(iterations), ' iterations; the cache was ', toString(round(100 * kv_share)), '% full'))
    ]) AS verdict
    WHERE iterations >= 20
)
COMMENT 'verdicts about inference engines by the minute; a healthy engine has no row';

-- What tokens of an adapter cost: iterations with it beside those without, of the same phase and about as many tokens.
CREATE OR REPLACE VIEW {database}.adapter_costs
(
    job LowCardinality(String) COMMENT 'job name',
    run LowCardinality(String) COMMENT 'one start of the job',
    adapter String COMMENT 'adapter; empty = the model alone',
    iterations UInt64 COMMENT 'iterations with its tokens that others without it are compared with',
    tokens Int64 COMMENT 'its tokens in them',
    ns_per_token Float64 COMMENT 'time that a token of it adds to an iteration of as many tokens without it, and what such a token takes anyway; ns',
    ratio Float64 COMMENT 'this, by what a token takes in iterations without it',
    extra_share Float64 COMMENT 'share of the time of these iterations that is beyond those without it'
)
AS SELECT
    job, run, adapter,
    sum(n) AS iterations,
    sum(its) AS tokens,
    sum(ns - base * n) / sum(its) + sum(base * n) / sum(all_tokens) AS ns_per_token,
    ns_per_token / (sum(base * n) / sum(all_tokens)) AS ratio,
    sum(ns - base * n) / sum(ns) AS extra_share
FROM (
    SELECT w.job AS job, w.run AS run, w.adapter AS adapter, count() AS n, sum(w.its) AS its, sum(w.tokens) AS all_tokens, sum(w.ns) AS ns,
        (any(a.ns) - sum(w.ns)) / nullIf(any(a.n) - count(), 0) AS base
    FROM (
        SELECT job, run, phase, tokens, part[1] AS adapter, toInt64OrZero(part[2]) AS its, ifNull(gpu_ns, duration_ns) AS ns, floor(4 * log2(tokens)) AS size
        FROM {database}.iterations
        ARRAY JOIN arrayMap(one -> splitByString('=', one), arrayFilter(one -> one != '', splitByChar(',', adapters))) AS part
        WHERE role = 'engine' AND tokens > 0
    ) AS w
    INNER JOIN (
        SELECT job, run, phase, floor(4 * log2(tokens)) AS size, count() AS n, sum(ifNull(gpu_ns, duration_ns)) AS ns
        FROM {database}.iterations
        WHERE role = 'engine' AND tokens > 0
        GROUP BY job, run, phase, size
    ) AS a ON a.job = w.job AND a.run = w.run AND a.phase = w.phase AND a.size = w.size
    GROUP BY job, run, adapter, w.phase, w.size
    HAVING base IS NOT NULL
)
GROUP BY job, run, adapter
COMMENT 'what tokens of each adapter cost, by iterations with and without it; an estimate';
