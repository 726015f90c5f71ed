-- How does an inference engine do: time to the first token, time of a token, throughput, what the GPU does?
-- theme: Serving
-- try: --job served
-- chart: ttft_p50_ms, ttft_p95_ms by engine
-- A row an engine and a run. `gpu_busy_percent`, and what it is busy with, are shares of the time in which the engine had requests; NULL without GPU times. Quantiles are of requests that ended.
SELECT m.run AS run, m.engine AS engine, r.requests AS requests, r.tokens_per_s AS tokens_per_s, r.ttft_p50_ms AS ttft_p50_ms, r.ttft_p95_ms AS ttft_p95_ms, r.tpot_p50_ms AS tpot_p50_ms, r.tpot_p95_ms AS tpot_p95_ms,
    m.iterations AS iterations, m.batch AS batch, m.gpu_busy_percent AS gpu_busy_percent, m.prefill_percent AS prefill_percent, m.mixed_percent AS mixed_percent, m.decode_percent AS decode_percent,
    m.starved_percent AS starved_percent, m.idle_with_queue_s AS idle_with_queue_s, m.preempted AS preempted
FROM (
    SELECT run, engine, sum(s.iterations) AS iterations, round(sum(s.batch * s.iterations) / sum(s.iterations), 1) AS batch,
        round(100 * sum(s.prefill_gpu_ns + s.mixed_gpu_ns + s.decode_gpu_ns) / sum(s.work_ns), 1) AS gpu_busy_percent,
        round(100 * sum(s.prefill_gpu_ns) / sum(s.work_ns), 1) AS prefill_percent, round(100 * sum(s.mixed_gpu_ns) / sum(s.work_ns), 1) AS mixed_percent,
        round(100 * sum(s.decode_gpu_ns) / sum(s.work_ns), 1) AS decode_percent, round(100 * sum(s.starved_ns) / sum(s.work_ns), 1) AS starved_percent,
        round(sum(s.idle_with_queue_ns) / 1e9, 2) AS idle_with_queue_s, sum(s.preempted) AS preempted
    FROM serving_minutes AS s
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}
    GROUP BY run, engine
) AS m
LEFT JOIN (
    SELECT run, engine, count() AS requests, round(sum(q.output_tokens) / nullIf(dateDiff('millisecond', min(start), max(end)) / 1e3, 0), 1) AS tokens_per_s,
        round(quantileExactInclusiveIf(0.5)(ifNull(ttft_ns, 0), ttft_ns IS NOT NULL) / 1e6, 1) AS ttft_p50_ms, round(quantileExactInclusiveIf(0.95)(ifNull(ttft_ns, 0), ttft_ns IS NOT NULL) / 1e6, 1) AS ttft_p95_ms,
        round(quantileExactInclusiveIf(0.5)(ifNull(tpot_ns, 0), tpot_ns IS NOT NULL) / 1e6, 2) AS tpot_p50_ms, round(quantileExactInclusiveIf(0.95)(ifNull(tpot_ns, 0), tpot_ns IS NOT NULL) / 1e6, 2) AS tpot_p95_ms
    FROM requests AS q
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY run, engine
) AS r ON r.run = m.run AND r.engine = m.engine
ORDER BY run, engine
LIMIT {limit:UInt32}
