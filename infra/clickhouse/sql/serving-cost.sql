-- Which model, adapter, tenant or route costs most a token?
-- theme: Serving
-- try: --job served
-- chart: gpu_s by model, adapter, tenant, route
-- GPU time of requests is their share of iterations by tokens: an estimate. `gpu_ms_per_1000` is by 1,000 tokens of prompts and answers. The row without a name is GPU time of no request that has ended. Without GPU times it is the host's time of iterations.
SELECT *, round(gpu_s / nullIf(sum(gpu_s) OVER (), 0), 4) AS share
FROM (
    SELECT model, adapter, tenant, route, count() AS requests, sum(ifNull(q.prompt_tokens, 0)) AS prompt_tokens, sum(q.output_tokens) AS output_tokens,
        round(sum(ifNull(q.gpu_ns, q.host_ns)) / 1e9, 4) AS gpu_s, round(sum(ifNull(q.gpu_ns, q.host_ns)) / 1e3 / nullIf(prompt_tokens + output_tokens, 0), 3) AS gpu_ms_per_1000, 1 AS is_named
    FROM requests AS q
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
    GROUP BY model, adapter, tenant, route
    UNION ALL
    SELECT '', '', '', '', 0, 0, 0, round(((SELECT sum(ifNull(gpu_ns, duration_ns)) FROM iterations WHERE role = 'engine' AND job = {job:String} AND ({run:String} = '' OR run = {run:String})
            AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')})
        - (SELECT sum(ifNull(gpu_ns, host_ns)) FROM requests WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String})
            AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')})) / 1e9, 4), NULL, 0
)
ORDER BY is_named DESC, gpu_ms_per_1000 DESC, adapter, tenant, route
LIMIT {limit:UInt32}
