"""Device health: are the GPUs well, and are they used?"""

from __future__ import annotations

from typing import Any

from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery, encoded
from drumline.infra.grafana.thresholds import ANY, IDLE, TEMPERATURE, THROTTLED_BITS
from drumline.infra.grafana.variables import HOSTS, JOBS, MARKS_OF_JOBS

_WHERE = "@jobs AND @hosts AND @minute"
_GPU = "concat(host, ' GPU ', toString(gpu_index)) AS gpu"
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


def _line(title: str, description: str, value: str, unit: str, **shown: Any) -> Panel:
    """Return a panel with a line per GPU; `shown` are further fields of Panel."""
    query = PanelQuery(
        f"""
        SELECT $__timeInterval(minute) AS time, {_GPU}, {value} AS value
        FROM devices_per_minute AS d WHERE {_WHERE} GROUP BY time, host, gpu_index HAVING isNotNull(value)
        ORDER BY time, host, gpu_index
        """,
        "time:t gpu:s value:n",
    )
    empty = "no samples in this time range, or the GPU does not report this"
    return Panel("timeseries", title, description, query, unit, min_interval="1m", empty=empty, **shown)


LINES = (
    (
        _line(
            "Utilisation",
            "Share of time with any kernel running, as NVML reports it. Line: below it a GPU that a job holds is idle "
            "(alert).",
            "avgMerge(util_gpu)",
            "percent",
            key="utilisation",
            thresholds=IDLE,
            maximum=100,
        ),
        _line("Power", "Mean power.", "avgMerge(power_mw) / 1000", "watt"),
    ),
    (
        _line("Temperature", "Highest of each minute.", "max(max_temperature)", "celsius", thresholds=TEMPERATURE),
        _line(
            "SM clock, lowest",
            "Lowest of each minute: a throttled GPU shows here first.",
            "min(min_sm_clock) * 1000000",
            "hertz",
        ),
    ),
    (
        _line(
            "Slowed by heat or a power fault",
            "1 where a minute had HW slowdown, thermal or power-brake reasons; the power cap is left out. The "
            "alert needs more than two such minutes of five.",
            f"max(bitAnd(throttle_reasons, {THROTTLED_BITS}) != 0)",
            "short",
            key="throttle",
            thresholds=ANY,
            maximum=1,
        ),
        _line("Memory used", "Highest of each minute.", "max(max_memory_used)", "bytes"),
    ),
    (
        _line("PCIe", "To and from the GPU.", "(avgMerge(pcie_rx_kbps) + avgMerge(pcie_tx_kbps)) * 1000", "Bps"),
        _line(
            "NVLink",
            "To and from the GPU, all links.",
            "(avgMerge(nvlink_rx_kbps) + avgMerge(nvlink_tx_kbps)) * 1000",
            "Bps",
        ),
    ),
    (
        _line(
            "XIDs",
            "Highest XID number of each minute, 0 = none. Also marked on every dashboard.",
            "toFloat64(ifNull(max(max_xid), 0))",
            "none",
            key="xid",
            thresholds=ANY,
        ),
        _line(
            "Uncorrected ECC errors",
            "Since the driver was loaded; the alert fires when it grows.",
            "max(d.ecc_uncorrected)",
            "none",
            key="ecc",
            thresholds=ANY,
        ),
    ),
)
TABLE = Panel(
    "table",
    "GPUs",
    "One row a GPU: what it did in this time range, every reason for a lower clock that was seen, and errors.",
    PanelQuery(
        f"""
        SELECT host, gpu_index AS gpu, job, rank, utilisation, watts, temperature, sm_clock, memory, reasons, xid, ecc,
            samples, {encoded("job")} AS job_key FROM (
            SELECT host, gpu_index, job, toInt32(anyLast(d.rank)) AS rank, avgMerge(util_gpu) AS utilisation,
                avgMerge(power_mw) / 1000 AS watts,
                max(max_temperature) AS temperature, min(min_sm_clock) * 1000000 AS sm_clock,
                    max(max_memory_used) / max(memory_total) AS memory,
                groupBitOr(throttle_reasons) AS bits, arrayStringConcat(arrayFilter(x -> x != '', [{_NAMES}]),
                    ' + ') AS reasons,
                max(max_xid) AS xid, max(d.ecc_uncorrected) AS ecc, sum(d.samples) AS samples
            FROM devices_per_minute AS d WHERE {_WHERE} GROUP BY host, gpu_index, job
        ) ORDER BY host, gpu, job LIMIT 2000
        """,
        "host:s gpu:n job:s rank:n utilisation:n watts:n temperature:n sm_clock:n memory:n reasons:s xid:n ecc:n "
        "samples:n job_key:s",
        "table",
    ),
    unit="none",
    width=24,
    height=10,
    fields={
        "job": Field(link=Link("This job", "drumline-job", {"job": "${__data.fields.job_key}"}, keeps=())),
        "utilisation": Field("percent", decimals=0),
        "watts": Field("watt", decimals=0),
        "temperature": Field("celsius", thresholds=TEMPERATURE),
        "sm_clock": Field("hertz"),
        "memory": Field("percentunit", gauge=True),
        "xid": Field(thresholds=ANY),
        "ecc": Field(thresholds=ANY),
        "job_key": Field(hidden=True),
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
    ((TABLE,), *LINES, (REAL,)),
    (JOBS, HOSTS),
    MARKS_OF_JOBS,
)
