-- What did each team, user or other label cost, and how much of that did late ranks?
-- theme: Cost
-- try: --by model --price 3.5
-- chart: gpu_hours, gpu_hours_lost by label
-- Runs count that began in the time range; those without the label are one row.
-- @by = team: name of a label of `drumline run --label NAME=VALUE`, or namespace (of Kubernetes)
-- @price = 0: of a GPU hour, in your currency; without one money is NULL
SELECT if({by:String} = 'namespace' AND NOT mapContains(l.labels, 'namespace'), l.namespace, l.labels[{by:String}]) AS label, uniqExact(j.job) AS jobs, count() AS runs, round(sum(j.hours), 4) AS gpu_hours,
    round(sum(j.hours) * nullIf({price:Float64}, 0), 4) AS money, round(sum(s.lost) / 3600, 4) AS gpu_hours_lost, round(sum(s.lost) / 3600 * nullIf({price:Float64}, 0), 4) AS money_lost
FROM (
    SELECT job, run, ranks * dateDiff('millisecond', started, ended) / 3.6e6 AS hours
    FROM jobs
    WHERE started >= {since:DateTime64(3, 'UTC')} AND started < {until:DateTime64(3, 'UTC')}
) AS j
LEFT JOIN (SELECT job, run, any(labels) AS labels, any(k8s_namespace) AS namespace FROM processes GROUP BY job, run) AS l ON l.job = j.job AND l.run = j.run
LEFT JOIN (SELECT job, run, sum(gpu_seconds_lost) AS lost FROM stragglers WHERE severity >= 'suspect' GROUP BY job, run) AS s ON s.job = j.job AND s.run = j.run
GROUP BY label
ORDER BY gpu_hours DESC
LIMIT {limit:UInt32}
