"""Device health: are the GPUs well, and are they used?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.device_lines import FAULTS, LINES, TRAFFIC, WHERE
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, TEMPERATURE
from drumline.infra.grafana.tokens import encoded
from drumline.infra.grafana.variables import HOSTS, JOBS, LABELLED, MARKS_OF_JOBS
from drumline.schemas.counters import CLOCK_FAULT_BITS, CLOCK_REASONS

_NAMES = ", ".join(f"if(bitAnd(bits, {bit}) != 0, '{name}', '')" for bit, name in CLOCK_REASONS.items())


_RANK = {"job": "${__data.fields.job_key}", "rank": "${__data.fields.rank}"}
_GPUS = f"SELECT {{}} AS value FROM devices_per_minute AS d WHERE {WHERE}"
NUMBERS = (
    stat("GPUs", "GPUs and MIG instances that were sampled.", _GPUS.format("uniqExact(gpu_uuid)")),
    faults(
        "Throttled",
        "GPUs that were slowed down by heat or a power fault, not by their power cap.",
        _GPUS.format(f"uniqExactIf(gpu_uuid, bitAnd(throttle_reasons, {CLOCK_FAULT_BITS}) != 0)"),
    ),
    stat(
        "Hottest",
        "Highest temperature of any GPU.",
        _GPUS.format("max(max_temperature)"),
        "celsius",
        limits=TEMPERATURE,
        decimals=0,
    ),
    stat(
        "Mean utilisation",
        "Mean over GPUs and time, as NVML reports it.",
        _GPUS.format("avgMerge(util_gpu)"),
        "percent",
    ),
    faults("GPUs with XIDs", "GPUs that reported an XID.", _GPUS.format("uniqExactIf(gpu_uuid, max_xid > 0)")),
    faults(
        "GPUs with ECC errors",
        "GPUs with uncorrected errors since their driver was loaded.",
        _GPUS.format("uniqExactIf(gpu_uuid, d.ecc_uncorrected > 0)"),
    ),
)
TABLE = Panel(
    "table",
    "All GPUs",
    "One row a GPU: what it did in this time range, every reason for a lower clock that was seen, and errors.",
    PanelQuery(
        f"""
        SELECT host, gpu_index AS gpu, job, utilisation, watts, temperature, reasons, xids, {encoded("job")} AS job_key,
            rank
        FROM (
            SELECT host, gpu_index, job, toInt32(anyLast(d.rank)) AS rank, avgMerge(util_gpu) AS utilisation,
                avgMerge(power_mw) / 1000 AS watts, max(max_temperature) AS temperature,
                groupBitOr(throttle_reasons) AS bits, arrayStringConcat(arrayFilter(x -> x != '', [{_NAMES}]),
                    ' + ') AS reasons, arraySort(groupUniqArrayArray(d.xids)) AS numbers,
                arrayStringConcat(arrayMap(x -> toString(x), numbers), ', ') AS xids, max(d.ecc_uncorrected) AS ecc
            FROM devices_per_minute AS d WHERE {WHERE} GROUP BY host, gpu_index, job
        ) ORDER BY notEmpty(numbers) DESC, ecc DESC NULLS LAST, temperature DESC, host, gpu, job LIMIT 2000
        """,
        "host:s gpu:n job:s utilisation:n watts:n temperature:n reasons:s xids:s job_key:s rank:n",
        "table",
    ),
    unit="none",
    width=24,
    height=10,
    fields={
        "host": Field(width=180),
        "job": Field(width=180, link=Link("Its rank", "drumline-rank", _RANK, keeps=())),
        "utilisation": Field("percent", decimals=0),
        "watts": Field("watt", "Power", decimals=0),
        "temperature": Field("celsius", thresholds=TEMPERATURE),
        "reasons": Field(header="Why its clock was lower", width=300, fills=True),
        "xids": Field(header="XIDs", width=120),
        "job_key": Field(hidden=True),
        "rank": Field(hidden=True),
    },
    empty="no GPU was sampled",
)
OFFENDERS = Panel(
    "table",
    "At fault again and again",
    "GPUs and hosts with a fault in this time range, of any job, those with most faulty runs first: verdicts for a "
    "cause of the machine, XIDs of the hardware, losses, failed checks. Ranks that wait are not named. "
    "`drumline notify` posts them to a webhook.",
    PanelQuery(
        """
        SELECT host, gpu_uuid, faulty_runs, runs, arrayStringConcat(causes, '; ') AS verdicts,
            arrayStringConcat(arrayMap(x -> toString(x), o.xids), ', ') AS xids, losses,
            arrayStringConcat(o.failed_checks, ', ') AS failed
        FROM offenders AS o WHERE @hosts AND last_time >= $__fromTime_ms AND first_time <= $__toTime_ms
        ORDER BY faulty_runs DESC, notEmpty(o.xids) + losses + length(o.failed_checks) DESC, gpu_seconds_lost DESC,
            host, gpu_uuid LIMIT 200
        """,
        "host:s gpu_uuid:s faulty_runs:n runs:n verdicts:s xids:s losses:n failed:s",
        "table",
    ),
    unit="none",
    width=24,
    height=8,
    fields={
        "host": Field(width=160),
        "gpu_uuid": Field(header="GPU", width=330),
        "faulty_runs": Field(header="Faulty runs", thresholds=ANY),
        "runs": Field(header="Of runs"),
        "verdicts": Field(header="Verdicts", width=220, fills=True),
        "xids": Field(header="XIDs", width=100),
        "losses": Field(header="Lost", thresholds=ANY),
        "failed": Field(header="Failed checks", width=160),
    },
    empty="no GPU and no host was at fault",
)
REAL = Panel(
    "timeseries",
    "NVML's utilisation against real kernel time",
    "Mean over the chosen GPUs and their ranks. Utilisation shows that something ran; kernel time shows how much of "
    "the second, overlapping kernels counted twice.",
    PanelQuery(
        """
        SELECT time, utilisation, kernel_time FROM (
            SELECT $__timeInterval(minute) AS time, avgMerge(util_gpu) / 100 AS utilisation
            FROM devices_per_minute WHERE @jobs AND @hosts AND @minute GROUP BY time
        ) AS sampled LEFT JOIN (
            SELECT $__timeInterval(second) AS time, sum(gpu_ns) / 1e9 / (uniqExact(job, run, rank) *
                $__interval_s) AS kernel_time
            FROM ranks_per_second WHERE @jobs AND @hosts AND second >= toStartOfMinute($__fromTime)
                AND second <= $__toTime GROUP BY time
        ) AS launched USING (time) ORDER BY time
        """,
        "time:t utilisation:n kernel_time:n",
    ),
    unit="percentunit",
    width=24,
    min_interval="1m",
)

DEVICES = Dashboard(
    "drumline-devices",
    "Device health",
    "Are the GPUs well, and are they used?",
    "host",
    (NUMBERS, (TABLE,), (OFFENDERS,), *LINES, (TRAFFIC, FAULTS), (REAL,)),
    (*LABELLED, JOBS, HOSTS),
    MARKS_OF_JOBS,
)
