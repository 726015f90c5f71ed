"""Compare runs: what is different between two runs of a job?"""

from __future__ import annotations

from dataclasses import replace

from drumline.infra.clickhouse.main_cause import main_cause
from drumline.infra.grafana.dashboards.status import cause, stat
from drumline.infra.grafana.dashboards.verdict_panels import ACTION, ACTION_FIELD
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LEVEL, LOST
from drumline.infra.grafana.tokens import STEP_PARTS, chosen
from drumline.infra.grafana.variables import JOB, LABELLED, RUN
from drumline.schemas.topics import Topic

IS_A, IS_B = (f"run = {chosen(name)}" for name in ("run_a", "run_b"))
BOTH = f"@job AND ({IS_A} OR {IS_B})"
_STEPS = f"FROM steps_per_second AS s WHERE {BOTH} AND @second"
_MEDIAN = "quantilesDDIfMergeIf(0.01, 0.5, 0.95, 0.99)(durations, {})[1]"
_CHOICE = replace(RUN, multi=False, has_all=False)
RUN_A = replace(_CHOICE, name="run_a", label="Run A", description="the run before")
RUN_B = replace(_CHOICE, name="run_b", label="Run B", description="the run after")

NUMBERS = (
    stat(
        "Step time of A", "Median of all ranks, within 1 %.", f"SELECT {_MEDIAN.format(IS_A)} AS value {_STEPS}", "ns"
    ),
    stat(
        "Step time of B", "Median of all ranks, within 1 %.", f"SELECT {_MEDIAN.format(IS_B)} AS value {_STEPS}", "ns"
    ),
    stat(
        "B to A",
        "Median step time of B divided by that of A: above 1, B is slower.",
        f"SELECT {_MEDIAN.format(IS_B)} / {_MEDIAN.format(IS_A)} AS value {_STEPS}",
        "none",
        limits=((1.02, "orange"), (1.1, "red")),
        decimals=3,
    ),
    stat(
        "Ranks of A and B",
        "Ranks that finished steps.",
        f"""
        SELECT sum(n) AS value FROM (
            SELECT uniqExactIfMerge(ranks) AS n FROM records_per_minute
            WHERE {BOTH} AND @minute AND topic = '{Topic.STEP}' GROUP BY run
        )
        """,
    ),
    *(
        stat(
            f"GPU time lost in {name}",
            "GPU time spent waiting for what was late.",
            f"SELECT sumIf(gpu_seconds_lost, {run}) AS value FROM stragglers WHERE {BOTH} AND @window",
            "s",
            limits=LOST,
        )
        for name, run in (("A", IS_A), ("B", IS_B))
    ),
)
_PARTS = {"whole step": "gpu_duration_ns", **STEP_PARTS}
_MEANS = ", ".join(
    f"('{name}', " + ", ".join(f"sumIf(s.{column}, {run}) / sumIf(s.known_steps, {run})" for run in (IS_A, IS_B)) + ")"
    for name, column in _PARTS.items()
)
PARTS = Panel(
    "table",
    "A step, part by part",
    "Mean over all steps and ranks of each run in this time range, and what B has more than A.",
    PanelQuery(
        f"""
        SELECT part, in_a, in_b, in_b - in_a AS more FROM (
            SELECT arrayJoin(means) AS mean, mean.1 AS part, mean.2 AS in_a, mean.3 AS in_b
            FROM (SELECT [{_MEANS}] AS means {_STEPS} HAVING sum(s.known_steps) > 0)
        ) ORDER BY abs(more) DESC
        """,
        "part:s in_a:n in_b:n more:n",
        "table",
    ),
    unit="ns",
    width=24,
    height=7,
    fields={
        "in_a": Field(header="Run A"),
        "in_b": Field(header="Run B"),
        "more": Field(header="B more than A", width=140),
    },
    empty="choose two runs with steps in this time range",
)
_KERNELS = f"""
SELECT name, sumIf(k.launches, {IS_A}) / greatest(any(steps.1), 1) AS launches_a,
    sumIf(k.launches, {IS_B}) / greatest(any(steps.2), 1) AS launches_b,
    sumIf(k.gpu_ns, {IS_A}) / greatest(any(steps.1), 1) AS gpu_a,
    sumIf(k.gpu_ns, {IS_B}) / greatest(any(steps.2), 1) AS gpu_b,
    (SELECT (sumIf(s.steps, {IS_A}), sumIf(s.steps, {IS_B})) {_STEPS}) AS steps
FROM kernels_per_minute AS k WHERE {BOTH} AND @minute GROUP BY name
"""
_COLUMNS = "kernel:s family:s launches_a:n launches_b:n gpu_a:n gpu_b:n more:n"
_KERNEL_FIELDS = {
    "kernel": Field(width=300, fills=True),
    "launches_a": Field("none", "Launches in A", decimals=1),
    "launches_b": Field("none", "Launches in B", decimals=1),
    "gpu_a": Field("ns", "GPU time in A"),
    "gpu_b": Field("ns", "GPU time in B"),
    "more": Field("ns", "B more than A"),
}


def _kernels(title: str, description: str, where: str, empty: str) -> Panel:
    return Panel(
        "table",
        title,
        description,
        PanelQuery(
            f"""
            SELECT short AS kernel, family, launches_a, launches_b, gpu_a, gpu_b, gpu_b - gpu_a AS more
            FROM ({_KERNELS}) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
            WHERE {where} ORDER BY abs(more) DESC LIMIT 100
            """,
            _COLUMNS,
            "table",
        ),
        width=24,
        fields=_KERNEL_FIELDS,
        empty=empty,
    )


CHANGED = _kernels(
    "Kernels of both runs",
    "Launches and GPU time in a step of one rank; those that differ most first.",
    "launches_a > 0 AND launches_b > 0",
    "no kernel ran in both runs",
)
ONE_SIDE = _kernels(
    "Kernels of one run only",
    "Launches and GPU time in a step of one rank: another version, shape or compiler has other kernels.",
    "(launches_a > 0) != (launches_b > 0)",
    "both runs have the same kernels",
)
VERDICTS = Panel(
    "table",
    "Verdicts of both runs",
    "Ranks that were late in either run: their worst level, the cause that cost most, GPU time lost, what to do.",
    PanelQuery(
        f"""
        SELECT of_run, rank, host, worst, {cause("v")} AS cause, gpu_seconds_lost, action FROM (
            SELECT *, {ACTION} FROM (
                SELECT if({IS_A}, 'A', 'B') AS of_run, rank, argMax(s.host, window_end) AS host, max(@level) AS worst,
                    {main_cause("@bad")} AS why, why.1 AS cause, why.2 AS detail,
                    sum(s.gpu_seconds_lost) AS gpu_seconds_lost
                FROM stragglers AS s WHERE {BOTH} AND @window GROUP BY of_run, rank
            ) WHERE worst > 0
        ) AS v ORDER BY gpu_seconds_lost DESC LIMIT 100
        """,
        "of_run:s rank:n host:s worst:n cause:s gpu_seconds_lost:n action:s",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "of_run": Field(header="Run", width=60),
        "rank": Field(
            width=90,
            decimals=0,
            texts={-1: "whole job"},
            link=Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"}, keeps=("job",)),
        ),
        "worst": Field(header="Worst level", levels=True, thresholds=LEVEL),
        "cause": Field(width=200),
        "gpu_seconds_lost": Field("s", "GPU time lost", decimals=1, thresholds=LOST),
        "action": ACTION_FIELD,
    },
    empty="no rank was late in either run",
)

_P95 = "quantilesDDMerge(0.01, 0.5, 0.95, 0.99)({})[3]"


def _shift(column: str, table: str, when: str) -> str:
    """Return SQL for a row's time, in run B moved to the begin of A."""
    begins = (
        f"(SELECT dateDiff('second', minIf({column}, {IS_B}), minIf({column}, {IS_A})) FROM {table} "
        f"WHERE {BOTH} AND {when})"
    )
    return f"{column} + toIntervalSecond(if({IS_A}, 0, {begins}))"


def _over_time(title: str, description: str, source: str, value: str, name: str, unit: str) -> Panel:
    return Panel(
        "timeseries",
        title,
        f"{description} Run B is drawn as if it had begun with A.",
        PanelQuery(
            f"""
            SELECT $__timeInterval(at) AS time, if(is_a, 'Run A', 'Run B') AS of_run, {value} AS {name}
            FROM ({source}) GROUP BY time, of_run ORDER BY time, of_run
            """,
            f"time:t of_run:s {name}:n",
        ),
        unit=unit,
        series="{of_run}",
        min_interval="1m",
    )


_COUNTED = f"""
SELECT {_shift("start", "steps", "@start")} AS at, {IS_A} AS is_a, kernels + collectives AS launches, compute_ns,
    gpu_duration_ns FROM steps
WHERE {BOTH} AND @start AND skipped = 0 AND gpu_duration_ns > 0 AND kernels > 0
"""
_ROLLED = f"""
SELECT {_shift("minute", "kernels_per_minute", "@minute")} AS at, {IS_A} AS is_a, blocks, threads_per_block
FROM kernels_per_minute WHERE {BOTH} AND @minute
"""
LAUNCHES = _over_time(
    "Launches a step", "Kernels of a rank in a step, mean.", _COUNTED, "avg(launches)", "launched", "none"
)
BUSY = _over_time(
    "GPU busy",
    "Share of the steps' time on the GPU in which kernels ran that are not communication.",
    _COUNTED,
    "sum(compute_ns) / sum(gpu_duration_ns)",
    "busy",
    "percentunit",
)
GRIDS = _over_time("p95 grid", "Blocks in a launch, p95.", _ROLLED, _P95.format("blocks"), "grid", "none")
BLOCKS = _over_time(
    "p95 block", "Threads in a block, p95 of the launches.", _ROLLED, _P95.format("threads_per_block"), "block", "none"
)

COMPARE = Dashboard(
    "drumline-compare",
    "Compare runs",
    "What is different between two runs of a job? Choose a time range that has both.",
    "job",
    (NUMBERS, (PARTS,), (VERDICTS,), (LAUNCHES, BUSY), (GRIDS, BLOCKS), (CHANGED,), (ONE_SIDE,)),
    (*LABELLED, JOB, RUN_A, RUN_B),
    start="now-24h",
    refresh="",
)
