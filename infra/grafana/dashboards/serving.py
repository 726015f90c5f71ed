"""Serving: how long do requests wait, what does the GPU do for them, and what holds the engine up?"""

from __future__ import annotations

from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import IDLE_SHARE, TTFT
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RUN

_WHERE = "@job AND @run AND $__timeFilter_ms(start)"
_ENGINE = f"{_WHERE} AND role = 'engine'"


def _quantiles(column: str) -> PanelQuery:
    return PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time,
            quantileExactInclusive(0.5)(assumeNotNull({column}) / 1e9) AS half,
            quantileExactInclusive(0.95)(assumeNotNull({column}) / 1e9) AS most
        FROM requests WHERE {_WHERE} AND {column} IS NOT NULL GROUP BY time ORDER BY time
        """,
        "time:t half:n most:n",
    )


_QUANTILES = {"half": Field(header="half of them"), "most": Field(header="95% of them")}
FIRST = Panel(
    "timeseries",
    "Time to the first token",
    "At most, by the time at which the engine took the request in. Line: the alert's limit.",
    _quantiles("ttft_ns"),
    "s",
    min_interval="10s",
    thresholds=TTFT,
    fields=_QUANTILES,
    key="ttft",
    empty="no request ended",
)
TOKEN = Panel(
    "timeseries",
    "Time of a token",
    "At most, of each token after the first.",
    _quantiles("tpot_ns"),
    "s",
    min_interval="10s",
    fields=_QUANTILES,
    empty="no request ended",
)
THROUGHPUT = Panel(
    "timeseries",
    "Tokens computed",
    "Tokens of prompts and others, per second.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, sum(prefill_tokens) / $__interval_s AS prompts,
            sum(decode_tokens) / $__interval_s AS others
        FROM iterations WHERE {_ENGINE} GROUP BY time ORDER BY time
        """,
        "time:t prompts:n others:n",
    ),
    "ops",
    min_interval="10s",
)
BUSY = Panel(
    "timeseries",
    "What the GPU does",
    "Share of the time in which the engine had requests, by what its iterations compute; host time without GPU times.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, sumIf(ns, phase = 'prefill') / sum(work) AS prompts,
            sumIf(ns, phase = 'mixed') / sum(work) AS both,
                sumIf(ns, phase NOT IN ('prefill', 'mixed')) / sum(work) AS decode
        FROM (SELECT *, ifNull(gpu_ns, duration_ns) AS ns, duration_ns + gap_ns AS work FROM iterations WHERE {_ENGINE})
        GROUP BY time ORDER BY time
        """,
        "time:t prompts:n both:n decode:n",
    ),
    "percentunit",
    min_interval="10s",
)
QUEUE = Panel(
    "timeseries",
    "Batch and queue",
    "Mean requests of an iteration, and the longest queue.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, avg(requests) AS batch, toFloat64(max(ifNull(waiting, 0))) AS queue
        FROM iterations WHERE {_ENGINE} GROUP BY time ORDER BY time
        """,
        "time:t batch:n queue:n",
    ),
    "none",
    min_interval="10s",
)
IDLE = Panel(
    "timeseries",
    "GPU idle while requests wait",
    "Share of the time with requests in which the GPU had nothing to do, with a queue. Line: the alert's limit.",
    PanelQuery(
        """
        SELECT $__timeInterval(minute) AS time, sum(idle_with_queue_ns) / sum(work_ns) AS idle
        FROM serving_minutes WHERE @job AND @run AND $__timeFilter(minute) GROUP BY time ORDER BY time
        """,
        "time:t idle:n",
    ),
    "percentunit",
    min_interval="1m",
    thresholds=IDLE_SHARE,
    key="idle",
)
CACHE = Panel(
    "timeseries",
    "KV cache in use",
    "Largest share of its blocks.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, max(kv_used / kv_total) AS used
        FROM iterations WHERE {_ENGINE} AND kv_total > 0 GROUP BY time ORDER BY time
        """,
        "time:t used:n",
    ),
    "percentunit",
    min_interval="10s",
    width=24,
    empty="the engine does not state it",
)
CAUSES = Panel(
    "table",
    "What holds engines up",
    "Verdicts by the minute; a healthy engine has none.",
    PanelQuery(
        """
        SELECT minute, host, cause, detail, severity, evidence FROM serving_verdicts
        WHERE @job AND @run AND $__timeFilter(minute) ORDER BY minute DESC, cause LIMIT 100
        """,
        "minute:t host:s cause:s detail:s severity:s evidence:s",
        "table",
    ),
    width=24,
    fields={"host": Field(width=160), "cause": Field(width=200), "evidence": Field(fills=True)},
    empty="nothing",
)
COSTS = Panel(
    "table",
    "Cost by model, adapter, tenant and route",
    "GPU time of ended requests, by tokens: an estimate. Host time of iterations where there are no GPU times.",
    PanelQuery(
        f"""
        SELECT model, adapter, tenant, route, count() AS ended, sum(q.output_tokens) AS tokens,
            sum(ifNull(q.gpu_ns, q.host_ns)) AS gpu_ns,
            gpu_ns / greatest(sum(ifNull(q.prompt_tokens, 0)) + tokens, 1) AS of_token
        FROM requests AS q WHERE {_WHERE} GROUP BY model, adapter, tenant, route ORDER BY of_token DESC LIMIT 100
        """,
        "model:s adapter:s tenant:s route:s ended:n tokens:n gpu_ns:n of_token:n",
        "table",
    ),
    "short",
    width=24,
    fields={"gpu_ns": Field("ns", "GPU time"), "of_token": Field("ns", "A token")},
    empty="no request ended",
)

SERVING_BOARD = Dashboard(
    "drumline-serving",
    "Serving",
    "How long do requests wait, what does the GPU do for them, and what holds the engine up?",
    "job",
    ((FIRST, TOKEN), (THROUGHPUT, BUSY), (QUEUE, IDLE), (CACHE,), (CAUSES,), (COSTS,)),
    (*LABELLED, JOB, RUN),
    MARKS,
)
