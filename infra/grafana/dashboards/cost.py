"""Cost: what did GPUs cost, and how much of it was lost, to what?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import KEY_COLUMNS, KEY_FIELDS, KEYS, TO_JOB, TO_RANK
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery, typed
from drumline.infra.grafana.variables import JOBS, MARKS_OF_JOBS, PRICE

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


def _stat(title: str, description: str, query: str, unit: str) -> Panel:
    return Panel("stat", title, description, PanelQuery(query, "value:n", "table"), unit, width=6, height=4, decimals=2)


NUMBERS = (
    _stat(
        "GPU time",
        "Of all ranks, from first to last kernel.",
        f"SELECT sum(gpu_hours) * 3600 AS value FROM ({_HELD})",
        "s",
    ),
    _stat(
        "Cost", "GPU-hours times the price above.", f"SELECT sum(gpu_hours) * {_PRICE} AS value FROM ({_HELD})", "none"
    ),
    _stat(
        "GPU time lost",
        "To late ranks, slow links, changed jobs.",
        f"SELECT sum(lost_hours) * 3600 AS value FROM ({_LOST})",
        "s",
    ),
    _stat(
        "Cost of it",
        "Lost GPU-hours times the price above.",
        f"SELECT sum(lost_hours) * {_PRICE} AS value FROM ({_LOST})",
        "none",
    ),
)
RUNS = Panel(
    "table",
    "Runs",
    "GPU-hours, cost, and what was lost. `kernel_hours`: sum of kernel durations, waiting NCCL kernels included.",
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
    fields={"job": Field(link=TO_JOB), "lost_share": Field("percentunit", decimals=1), **KEY_FIELDS},
)
CAUSES = Panel(
    "table",
    "Lost, by cause",
    "GPU time lost by cause, of all windows; which rank lost most.",
    PanelQuery(
        f"""
        SELECT job, run, cause, detail, sum(s.gpu_seconds_lost) AS gpu_seconds, gpu_seconds / 3600 * {_PRICE} AS cost,
            argMax(s.rank, s.gpu_seconds_lost) AS rank, argMax(s.host, s.gpu_seconds_lost) AS host, {KEYS}
        FROM stragglers AS s WHERE @jobs AND @window AND @bad GROUP BY job, run, cause, detail
        ORDER BY gpu_seconds DESC LIMIT 200
        """,
        f"job:s run:s cause:s detail:s gpu_seconds:n cost:n rank:n host:s {KEY_COLUMNS}",
        "table",
    ),
    width=24,
    fields={
        "job": Field(link=TO_JOB),
        "rank": Field(link=TO_RANK, decimals=0),
        "gpu_seconds": Field("s"),
        **KEY_FIELDS,
    },
    empty="nothing was lost",
)
OVER_TIME = Panel(
    "timeseries",
    "GPU time lost by job",
    "GPU seconds lost in each interval.",
    PanelQuery(
        """
        SELECT $__timeInterval_ms(window_end) AS time, job, sum(gpu_seconds_lost) AS lost
        FROM stragglers WHERE @jobs AND @window GROUP BY time, job ORDER BY time, job
        """,
        "time:t job:s lost:n",
    ),
    unit="s",
    bars=True,
    min_interval="1m",
    empty="nothing was lost",
)
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
    fields={"gpu_seconds": Field("s"), "share": Field("percentunit", gauge=True)},
)

COST = Dashboard(
    "drumline-cost",
    "Cost",
    "What did GPUs cost, and how much of it was lost, to what? Set the price of a GPU-hour above.",
    "fleet",
    (NUMBERS, (RUNS,), (CAUSES,), (OVER_TIME, FAMILIES)),
    (JOBS, PRICE),
    MARKS_OF_JOBS,
    start="now-24h",
    refresh="5m",
)
