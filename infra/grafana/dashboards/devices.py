"""Device health: are the GPUs well, and are they used?"""

from __future__ import annotations

from typing import Any

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery, encoded
from drumline.infra.grafana.thresholds import ANY, IDLE, TEMPERATURE, THROTTLED_BITS
from drumline.infra.grafana.variables import HOSTS, JOBS, LABELLED, MARKS_OF_JOBS

_WHERE = "@jobs AND @hosts AND @minute"
_GPU = "concat(host, ' GPU ', toString(gpu_index))"
#: Why a clock is lower than it could be (nvml.h, nvmlClocksEventReason...).
_REASONS = (
    (0x1, "idle"),
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "HW slowdown"),
    (0x10, "sync boost"),
    (0x20, "SW thermal"),
    (0x40, "HW thermal"),
    (0x80, "HW power brake"),
    (0x100, "display clocks"),
)
_NAMES = ", ".join(f"if(bitAnd(bits, {bit}) != 0, '{name}', '')" for bit, name in _REASONS)


def _line(title: str, description: str, value: str, unit: str, by: str = "avg(v)", **shown: Any) -> Panel:
    """Return a panel with a line for each of the ten GPUs that are worst `by` their values, and bands of all.

    `shown` are further fields of Panel.
    """
    rows = f"""
    SELECT $__timeInterval(minute) AS time, {_GPU} AS member, {value} AS v
    FROM devices_per_minute AS d WHERE {_WHERE} GROUP BY time, host, gpu_index HAVING isNotNull(v)
    """
    query = PanelQuery(worst(rows, "value", by), "time:t series:s member:s value:n")
    empty = "no samples in this time range, or the GPU does not report this"
    return Panel(
        "timeseries", title, description, query, unit, min_interval="1m", empty=empty, series="{series}", **shown
    )


def _marks(title: str, description: str, value: str, key: str, empty: str) -> Panel:
    """Return red bars in minutes in which a GPU had a fault, for the ten GPUs with most."""
    rows = f"""
    SELECT $__timeInterval(minute) AS time, {_GPU} AS member, {value} AS v
    FROM devices_per_minute AS d WHERE {_WHERE} GROUP BY time, host, gpu_index HAVING v > 0
    """
    query = PanelQuery(worst(rows, "value", "sum(v)", bands=False), "time:t series:s member:s value:n")
    return Panel(
        "timeseries", title, description, query, "none", min_interval="1m", thresholds=ANY, series="{series}",
        marks=True, bars=True, width=8, height=6, key=key, empty=empty,
    )  # fmt: skip


_RANK = {"job": "${__data.fields.job_key}", "rank": "${__data.fields.rank}"}
_GPUS = f"SELECT {{}} AS value FROM devices_per_minute AS d WHERE {_WHERE}"
NUMBERS = (
    stat("GPUs", "GPUs that were sampled.", _GPUS.format("uniqExact(gpu_uuid)")),
    faults(
        "Throttled",
        "GPUs that were slowed down by heat or a power fault, not by their power cap.",
        _GPUS.format(f"uniqExactIf(gpu_uuid, bitAnd(throttle_reasons, {THROTTLED_BITS}) != 0)"),
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
LINES = (
    (
        _line(
            "Utilisation",
            "Share of time with any kernel running, as NVML reports it. Line: below it a GPU that a job holds is idle "
            "(alert).",
            "avgMerge(util_gpu)",
            "percent",
            by="-avg(v)",
            key="utilisation",
            thresholds=IDLE,
            maximum=100,
        ),
        _line("Power", "Mean power.", "avgMerge(power_mw) / 1000", "watt"),
    ),
    (
        _line(
            "Temperature",
            "Highest of each minute.",
            "max(max_temperature)",
            "celsius",
            by="max(v)",
            width=8,
            thresholds=TEMPERATURE,
        ),
        _line(
            "Memory temperature",
            "Of the device memory (HBM), highest of each minute.",
            "max(max_memory_temperature)",
            "celsius",
            by="max(v)",
            width=8,
        ),
        _line(
            "SM clock, lowest",
            "Lowest of each minute: a throttled GPU shows here first.",
            "min(min_sm_clock) * 1000000",
            "hertz",
            by="-min(v)",
            width=8,
        ),
    ),
    (
        _line(
            "Tensor cores",
            "Share of time in which they were busy (GPM: Hopper and later).",
            "avgMerge(tensor_active)",
            "percent",
            by="-avg(v)",
            width=8,
            maximum=100,
        ),
        _line(
            "SMs in use",
            "With at least one warp (GPM).",
            "avgMerge(sm_active)",
            "percent",
            "-avg(v)",
            width=8,
            maximum=100,
        ),
        _line(
            "Memory bandwidth",
            "Of its peak (GPM).",
            "avgMerge(dram_active)",
            "percent",
            "-avg(v)",
            width=8,
            maximum=100,
        ),
    ),
    (
        _line("Memory used", "Highest of each minute.", "max(max_memory_used)", "bytes", width=8),
        _line(
            "PCIe", "To and from the GPU.", "(avgMerge(pcie_rx_kbps) + avgMerge(pcie_tx_kbps)) * 1000", "Bps", width=8
        ),
        _line(
            "NVLink",
            "To and from the GPU, all links.",
            "(avgMerge(nvlink_rx_kbps) + avgMerge(nvlink_tx_kbps)) * 1000",
            "Bps",
            width=8,
        ),
    ),
    (
        _marks(
            "Slowed by heat or a power fault",
            "1 where a minute had HW slowdown, thermal or power-brake reasons; the power cap is left out. The "
            "alert needs more than two such minutes of five.",
            f"max(bitAnd(throttle_reasons, {THROTTLED_BITS}) != 0)",
            "throttle",
            "no GPU was slowed down",
        ),
        _marks(
            "XIDs",
            "Highest XID number of each minute. Also marked on every dashboard.",
            "toFloat64(ifNull(max(max_xid), 0))",
            "xid",
            "no XID was reported",
        ),
        _marks(
            "Uncorrected ECC errors",
            "Since the driver was loaded; the alert fires when it grows.",
            "ifNull(max(d.ecc_uncorrected), 0)",
            "ecc",
            "no uncorrected ECC error was reported",
        ),
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
            FROM devices_per_minute AS d WHERE {_WHERE} GROUP BY host, gpu_index, job
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
    (NUMBERS, (TABLE,), *LINES, (REAL,)),
    (*LABELLED, JOBS, HOSTS),
    MARKS_OF_JOBS,
)
