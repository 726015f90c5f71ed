-- Which model, adapter, tenant or route costs most a token?
-- theme: Serving
-- try: --job served
-- chart: gpu_s by model, adapter, tenant, route
-- GPU time of requests is their share of iterations by tokens: an estimate. `gpu_ms_per_1000` and `joules_per_1000` are by 1,000 tokens of prompts and answers. The row without a name is GPU time and energy of no request that has ended; idle GPUs draw some of it. Without GPU times it is the host's time of iterations. `joules` are NULL without samples of the GPUs.
WITH watts AS (
    -- Of all GPUs of one engine. The energy counter is read seldom, and its last value is repeated: only new ones count.
    SELECT g.run AS run, g.minute AS minute, sum(g.mw) / 1e3 / greatest(any(e.engines), 1) AS w, sum(g.mw * g.s) / 1e3 AS j
    FROM (
        SELECT run, gpu_uuid, toStartOfMinute(time) AS minute, (toUnixTimestamp64Nano(max(time)) - toUnixTimestamp64Nano(min(time))) / 1e9 * ifNotFinite(count() / (count() - 1), 0) AS s,
            ifNull((maxIf(energy, is_new) - minIf(energy, is_new)) / nullIf((toUnixTimestamp64Nano(maxIf(time, is_new)) - toUnixTimestamp64Nano(minIf(time, is_new))) / 1e9, 0), avg(power)) AS mw
        FROM (
            SELECT run, gpu_uuid, time, ifNull(energy_mj, 0) AS energy, power_mw AS power, energy > lagInFrame(energy, 1, 0) OVER (PARTITION BY run, gpu_uuid ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS is_new
            FROM device_samples
            WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
                AND gpu_uuid IN (SELECT gpu_uuid FROM iterations WHERE job = {job:String} AND gpu_uuid != '' AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')})
        )
        GROUP BY run, gpu_uuid, minute
        HAVING mw IS NOT NULL
    ) AS g
    LEFT JOIN (
        SELECT run, toStartOfMinute(start) AS minute, uniqExact(process_id) AS engines FROM iterations
        WHERE role = 'engine' AND job = {job:String} AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')}
        GROUP BY run, minute
    ) AS e ON e.run = g.run AND e.minute = g.minute
    GROUP BY run, minute
),
named AS (
    -- The time of a request is spread over its minutes. Those without samples are taken as the mean of the others.
    SELECT model, adapter, tenant, route, sum(q.n) AS requests, sum(q.prompt) AS prompt_tokens, sum(q.output) AS output_tokens, sum(q.ns) AS time_ns,
        sum(q.ns) / 1e9 * sum(q.ns * p.w) / nullIf(sumIf(q.ns, p.w > 0), 0) AS j
    FROM (
        SELECT run, model, adapter, tenant, route, minute, sum(ifNull(gpu_ns, host_ns) / length(minutes)) AS ns, sum(at = 1) AS n, sumIf(ifNull(prompt_tokens, 0), at = 1) AS prompt, sumIf(output_tokens, at = 1) AS output
        FROM (SELECT *, arrayMap(m -> toDateTime(60 * m, 'UTC'), range(toUInt32(intDiv(toUnixTimestamp(start), 60)), toUInt32(intDiv(toUnixTimestamp(end), 60)) + 1)) AS minutes FROM requests
            WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')})
        ARRAY JOIN minutes AS minute, arrayEnumerate(minutes) AS at
        GROUP BY run, model, adapter, tenant, route, minute
    ) AS q
    LEFT JOIN watts AS p ON p.run = q.run AND p.minute = q.minute
    GROUP BY model, adapter, tenant, route
)
SELECT *, round(gpu_s / nullIf(sum(gpu_s) OVER (), 0), 4) AS share
FROM (
    SELECT model, adapter, tenant, route, requests, prompt_tokens, output_tokens, round(time_ns / 1e9, 4) AS gpu_s, round(time_ns / 1e3 / nullIf(prompt_tokens + output_tokens, 0), 3) AS gpu_ms_per_1000,
        round(j, 1) AS joules, round(1e3 * j / nullIf(prompt_tokens + output_tokens, 0), 2) AS joules_per_1000, 1 AS is_named
    FROM named
    UNION ALL
    SELECT '', '', '', '', 0, 0, 0, round(((SELECT sum(ifNull(gpu_ns, duration_ns)) FROM iterations WHERE role = 'engine' AND job = {job:String} AND ({run:String} = '' OR run = {run:String})
            AND start >= {since:DateTime64(3, 'UTC')} AND start < {until:DateTime64(3, 'UTC')})
        - (SELECT sum(time_ns) FROM named)) / 1e9, 4), NULL, round((SELECT sum(j) FROM watts) - (SELECT sum(j) FROM named), 1), NULL, 0
)
ORDER BY is_named DESC, gpu_ms_per_1000 DESC, adapter, tenant, route
LIMIT {limit:UInt32}
