-- Which requests waited longest for their first token, and what did they wait for?
-- theme: Serving
-- try: --job served --limit 5
-- chart: stacked queue_ms, prefill_ms by request
-- `queue_ms` is before the first iteration, `prefill_ms` from there to the first token. With --trace: the requests of one caller's trace, and the iterations in which they were.
-- @trace = : trace id, 32 hexadecimal digits of the caller's traceparent; empty = all requests
SELECT run, request, start, model, adapter, outcome, prompt_tokens, cached_tokens, output_tokens, round(ttft_ns / 1e6, 1) AS ttft_ms, round(queue_ns / 1e6, 1) AS queue_ms,
    round((ttft_ns - queue_ns) / 1e6, 1) AS prefill_ms, round(tpot_ns / 1e6, 2) AS tpot_ms, preemptions, round(gpu_ns / 1e6, 2) AS gpu_ms, first_iteration, last_iteration, process_id
FROM requests
WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    AND ({trace:String} = '' OR position(traceparent, {trace:String}) > 0)
ORDER BY ttft_ns DESC, start, request
LIMIT {limit:UInt32}
