"""Rank: what did one process and its GPU do, and what was different from its peers?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.rank_work import (
    BUDGET,
    COPIES,
    DEVICE,
    FREQUENCY,
    ITS_GPU,
    PEERS,
    SLOWEST,
    THIS_RANK,
)
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.dashboards.verdict_panels import guidance_of, lost_share
from drumline.infra.grafana.liveness import HUNG_RANKS, PLACE
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LEVEL, LEVEL_HUNG, LOST, SHARE, TEMPERATURE
from drumline.infra.grafana.tokens import chosen
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANK, RUN
from drumline.schemas.counters import CLOCK_FAULT_BITS

#: Without a choice none; rank -1 has the verdicts on the job as a whole.
_VERDICTS = f"@job AND @run AND rank = toInt32OrDefault({chosen('rank')}, toInt32(-2))"
_LAST = f"window_end, @evaluated) AS value FROM stragglers WHERE {_VERDICTS} AND @window"
NUMBERS = (
    stat(
        "Level",
        "Level in force after the last window in this time range; hung where the job waits for this rank at its end.",
        f"""
        SELECT if((SELECT count() FROM ({HUNG_RANKS}) WHERE {_VERDICTS}) > 0, {LEVEL_HUNG},
            argMaxIf(@level, window_end, @evaluated)) AS value
        FROM stragglers WHERE {_VERDICTS} AND @window
        """,
        "none",
        limits=LEVEL,
        levels=True,
    ),
    stat(
        "Lost now",
        "Share of the job's time lost to this rank in the last window.",
        f"SELECT argMaxIf(lost_share, {_LAST}",
        "percentunit",
        limits=SHARE,
    ),
    stat(
        "GPU time lost",
        "GPU time that other ranks spent waiting for this one.",
        f"SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE {_VERDICTS} AND @window",
        "s",
        limits=LOST,
    ),
    stat(
        "Step time",
        "Median of its steps.",
        f"SELECT quantileExactInclusive(0.5)(gpu_duration_ns) AS value FROM steps WHERE {THIS_RANK} AND @start "
        "AND skipped = 0 AND gpu_duration_ns > 0",
        "ns",
    ),
    stat(
        "Temperature of its GPU",
        "Highest in this time range.",
        f"SELECT max(max_temperature) AS value FROM devices_per_minute WHERE @minute AND @job AND {ITS_GPU}",
        "celsius",
        limits=TEMPERATURE,
        decimals=0,
    ),
    faults(
        "Minutes throttled",
        "Minutes in which heat or a power fault slowed its GPU down.",
        f"SELECT uniqExactIf(minute, bitAnd(throttle_reasons, {CLOCK_FAULT_BITS}) != 0) AS value FROM "
        f"devices_per_minute WHERE @minute AND @job AND {ITS_GPU}",
    ),
)
PROCESSES = Panel(
    "table",
    "Processes",
    "The rank's processes, newest first.",
    PanelQuery(
        f"""
        SELECT host, gpu_index AS gpu, gpu_model AS model, gpu_uuid, pid,
            {PLACE} AS placed, policy,
            start AS since
        FROM processes WHERE @job AND @run AND @rank AND start <= $__toTime_ms ORDER BY since DESC LIMIT 10
        """,
        "host:s gpu:n model:s gpu_uuid:s pid:n placed:s policy:s since:t",
        "table",
    ),
    unit="none",
    width=24,
    height=4,
    fields={
        "host": Field(width=140),
        "model": Field(header="GPU model", width=140),
        "gpu_uuid": Field(width=370),
        "placed": Field(header="Pod or Slurm job", width=200),
        "policy": Field(header="Recorded", width=170, fills=True),
    },
    empty="choose a rank",
)
VERDICT = Panel(
    "state-timeline",
    "Level in force",
    "Level of this rank after the last window, with recurrence.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(window_end) AS time, argMax(@level, window_end) AS level
        FROM stragglers WHERE {_VERDICTS} AND @window
        GROUP BY time ORDER BY time
        """,
        "time:t level:n",
    ),
    unit="none",
    series="level",
    width=24,
    height=4,
    levels=True,
    thresholds=LEVEL,
    minimum=None,
    empty="no verdicts in this time range",
)
RANK_BOARD = Dashboard(
    "drumline-rank",
    "Rank",
    "What did one process and its GPU do, and what was different from its peers?",
    "rank",
    (
        NUMBERS,
        (VERDICT,),
        (guidance_of(_VERDICTS),),
        (BUDGET, lost_share(_VERDICTS)),
        (PEERS, DEVICE),
        (SLOWEST,),
        (FREQUENCY, COPIES),
        (PROCESSES,),
    ),
    (*LABELLED, JOB, RUN, RANK),
    MARKS,
)
