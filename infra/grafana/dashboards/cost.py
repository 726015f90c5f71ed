"""Cost: what did GPUs cost, and how much of it was lost, to what?"""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.status import cause, stat
from drumline.infra.grafana.dashboards.verdict_panels import (
    ACTION,
    ACTION_FIELD,
    KEY_COLUMNS,
    KEY_FIELDS,
    KEYS,
    TO_JOB,
    TO_RANK,
)
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LOST, SHARE
from drumline.infra.grafana.tokens import typed
from drumline.infra.grafana.variables import CURRENCY, JOBS, LABELLED, MARKS_OF_JOBS, PRICE

_PRICE = f"toFloat64OrZero({typed('price')})"
_S = "toStartOfMinute($__fromTime) AND second <= $__toTime"
#: GPU-hours of each run: from a rank's first to its last second with kernels, whatever it did between.
_HELD = f"""
SELECT job, run, sum(held) / 3600 AS gpu_hours, sum(busy) / 1e9 / 3600 AS kernel_hours FROM (
    SELECT job, run, rank, dateDiff('second', min(second), max(second)) + 1 AS held, sum(gpu_ns) AS busy
    FROM ranks_per_second WHERE @jobs AND second >= {_S} GROUP BY job, run, rank
) GROUP BY job, run
"""
_LOST = """
SELECT job, run, sum(gpu_seconds_lost) / 3600 AS lost_hours FROM stragglers
WHERE @jobs AND @window GROUP BY job, run
"""


NUMBERS = (
    stat(
        "GPU time",
        "Of all ranks, from first to last kernel.",
        f"SELECT sum(gpu_hours) * 3600 AS value FROM ({_HELD})",
        "s",
        width=6,
    ),
    stat(
        "Cost, ${currency}",
        "GPU-hours times the price above.",
        f"SELECT sum(gpu_hours) * {_PRICE} AS value FROM ({_HELD})",
        "none",
        width=6,
        decimals=2,
    ),
    stat(
        "GPU time lost",
        "To late ranks, slow links, changed jobs.",
        f"SELECT sum(lost_hours) * 3600 AS value FROM ({_LOST})",
        "s",
        width=6,
        limits=LOST,
    ),
    stat(
        "Cost of lost time, ${currency}",
        "Lost GPU-hours times the price above.",
        f"SELECT sum(lost_hours) * {_PRICE} AS value FROM ({_LOST})",
        "none",
        width=6,
        limits=LOST,
        decimals=2,
    ),
)
_MONEY = Field("none", "Cost, ${currency}", decimals=2)
RUNS = Panel(
    "table",
    "Runs",
    "GPU-hours from first to last kernel, their cost, and what was lost. Hours of kernels: sum of their durations, "
    "waiting NCCL kernels included.",
    PanelQuery(
        f"""
        SELECT job, run, gpu_hours, gpu_hours * {_PRICE} AS cost, kernel_hours, lost_hours,
            lost_hours / gpu_hours AS lost_share,
            lost_hours * {_PRICE} AS lost_cost, {KEYS}
        FROM ({_HELD}) AS held LEFT JOIN ({_LOST}) AS lost USING (job, run) ORDER BY cost DESC LIMIT 500
        """,
        f"job:s run:s gpu_hours:n cost:n kernel_hours:n lost_hours:n lost_share:n lost_cost:n {KEY_COLUMNS}",
        "table",
    ),
    width=24,
    fields={
        "job": Field(link=TO_JOB),
        "run": Field(width=170),
        "gpu_hours": Field("none", "GPU-hours", decimals=2),
        "cost": _MONEY,
        "kernel_hours": Field("none", "Hours of kernels", decimals=2),
        "lost_hours": Field("none", "GPU-hours lost", decimals=2, thresholds=LOST),
        "lost_share": Field("percentunit", "Share lost", decimals=1, thresholds=SHARE),
        "lost_cost": Field("none", "Cost of lost time, ${currency}", decimals=2, thresholds=LOST),
        **KEY_FIELDS,
    },
)
#: Each label of a run: team and user of all, empty where it has none.
_OF_LABELS = """
SELECT job, run, arrayJoin(arrayConcat([('team', labels['team']), ('user', labels['user'])],
    arrayFilter(pair -> pair.1 NOT IN ('team', 'user'), arrayZip(mapKeys(labels), mapValues(labels))))) AS pair
FROM (SELECT job, run, any(labels) AS labels FROM processes WHERE @jobs GROUP BY job, run)
"""
BY_LABEL = Panel(
    "table",
    "By team, user and label",
    "The same by labels of `drumline run --label NAME=VALUE`: each name has all runs, so names do not add up.",
    PanelQuery(
        f"""
        SELECT pair.1 AS label, if(pair.2 = '', 'none', pair.2) AS value, uniqExact(job) AS jobs,
            sum(h.gpu_hours) AS gpu_hours, gpu_hours * {_PRICE} AS cost, sum(l.lost_hours) AS lost_hours,
            lost_hours / gpu_hours AS lost_share, lost_hours * {_PRICE} AS lost_cost
        FROM ({_HELD}) AS h INNER JOIN ({_OF_LABELS}) AS named USING (job, run)
        LEFT JOIN ({_LOST}) AS l USING (job, run)
        GROUP BY pair ORDER BY indexOf(['user', 'team'], label) DESC, label, gpu_hours DESC
        LIMIT 20 BY label LIMIT 200
        """,
        "label:s value:s jobs:n gpu_hours:n cost:n lost_hours:n lost_share:n lost_cost:n",
        "table",
    ),
    width=24,
    fields={
        "label": Field(width=150),
        "value": Field(width=200, fills=True),
        "jobs": Field("none"),
        **{name: RUNS.fields[name] for name in ("gpu_hours", "cost", "lost_hours", "lost_share", "lost_cost")},
    },
)
CAUSES = Panel(
    "table",
    "Lost, by cause",
    "GPU time lost by cause, of all windows; which rank lost most.",
    PanelQuery(
        f"""
        SELECT job, run, {cause("c")} AS cause, rank, host, gpu_seconds,
            gpu_seconds / 3600 * {_PRICE} AS cost, action, {KEYS}
        FROM (
            SELECT job, run, cause, detail, sum(s.gpu_seconds_lost) AS gpu_seconds, {ACTION},
                argMax(s.rank, s.gpu_seconds_lost) AS rank, argMax(s.host, s.gpu_seconds_lost) AS host
            FROM stragglers AS s WHERE @jobs AND @window AND @bad GROUP BY job, run, cause, detail
        ) AS c ORDER BY gpu_seconds DESC LIMIT 200
        """,
        f"job:s run:s cause:s rank:n host:s gpu_seconds:n cost:n action:s {KEY_COLUMNS}",
        "table",
    ),
    width=24,
    fields={
        "job": Field(link=TO_JOB),
        "run": Field(width=170),
        "cause": Field(width=200),
        "rank": Field("none", "Worst rank", link=TO_RANK, decimals=0, texts={-1: "whole job"}),
        "host": Field(header="On host"),
        "gpu_seconds": Field("s", "GPU time lost", decimals=1, thresholds=LOST),
        "cost": Field("none", "Cost, ${currency}", decimals=2, thresholds=LOST),
        "action": ACTION_FIELD,
        **KEY_FIELDS,
    },
    empty="nothing was lost",
)
OVER_TIME = Panel(
    "timeseries",
    "GPU time lost by job",
    "GPU time lost in each interval, the ten jobs that lost most.",
    PanelQuery(
        worst(
            """
            SELECT $__timeInterval_ms(window_end) AS time, job AS member, sum(gpu_seconds_lost) AS v
            FROM stragglers WHERE @jobs AND @window GROUP BY time, job
            """,
            "lost", by="sum(v)", bands=False,
        ),
        "time:t series:s member:s lost:n",
    ),
    series="{series}",
    unit="s",
    shades="orange",
    bars=True,
    min_interval="1m",
    empty="nothing was lost",
)  # fmt: skip
FAMILIES = Panel(
    "table",
    "Cost by kernel family",
    "GPU time of kernels by what they do, and its share of the cost.",
    PanelQuery(
        f"""
        SELECT family, sum(gpu) / 1e9 AS gpu_seconds, gpu_seconds / 3600 * {_PRICE} AS cost,
            sum(gpu) / sum(sum(gpu)) OVER () AS share FROM (
            SELECT name, sum(gpu_ns) AS gpu FROM kernels_per_minute WHERE @jobs AND @minute GROUP BY name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name GROUP BY family ORDER BY gpu_seconds DESC
        """,
        "family:s gpu_seconds:n cost:n share:n",
        "table",
    ),
    fields={
        "gpu_seconds": Field("s", "GPU time", decimals=1),
        "cost": _MONEY,
        "share": Field("percentunit", gauge=True, width=150, decimals=1),
    },
)

COST = Dashboard(
    "drumline-cost",
    "Cost",
    "What did GPUs cost, and how much of it was lost, to what? Set the price of a GPU-hour above.",
    "fleet",
    (NUMBERS, (RUNS,), (BY_LABEL,), (CAUSES,), (OVER_TIME, FAMILIES)),
    (*LABELLED, JOBS, PRICE, CURRENCY),
    MARKS_OF_JOBS,
    start="now-24h",
    refresh="5m",
)
