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
