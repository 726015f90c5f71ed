"""Lines and marks of GPUs and of hosts' links over time, of the dashboard Device health."""

from __future__ import annotations

from typing import Any

from drumline.infra.clickhouse.derived_schema import value_of
from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.model import Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, IDLE, LINK_ERRORS, TEMPERATURE
from drumline.schemas.counters import BY_NAME, CLOCK_FAULT_BITS, COUNTERS, LINK_ERROR_COLUMNS

WHERE = "@jobs AND @hosts AND @minute"
#: A MIG instance is a line of its own, with the first digits of its UUID.
_GPU = """
    concat(host, ' GPU ', toString(gpu_index), if(startsWith(gpu_uuid, 'MIG-'), substring(gpu_uuid, 4, 9), ''))
"""


def _line(title: str, description: str, value: str, unit: str, by: str = "avg(v)", **shown: Any) -> Panel:
    """Return a panel with a line for each of the ten GPUs that are worst `by` their values, and bands of all.

    `shown` are further fields of Panel.
    """
    rows = f"""
    SELECT $__timeInterval(minute) AS time, {_GPU} AS member, {value} AS v
    FROM devices_per_minute AS d WHERE {WHERE} GROUP BY time, member HAVING isNotNull(v)
    """
    query = PanelQuery(worst(rows, "value", by), "time:t series:s member:s value:n")
    empty = "no samples in this time range, or the GPU does not report this"
    return Panel(
        "timeseries", title, description, query, unit, min_interval="1m", empty=empty, series="{series}", **shown
    )


def _counter(name: str, width: int = 8) -> Panel:
    """Return the panel that the table of counters declares."""
    counter = BY_NAME[name]
    line, rolled = counter.line, counter.rolled[0]
    assert line is not None
    by = f"{'-' if line.low_is_worst else ''}{rolled.function}(v)"
    value = value_of(name, rolled) + line.scale
    return _line(line.title, line.description, value, line.unit, by, width=width, maximum=line.maximum)


def _marks(title: str, description: str, value: str, key: str, empty: str) -> Panel:
    """Return red bars in minutes in which a GPU had a fault, for the ten GPUs with most."""
    rows = f"""
    SELECT $__timeInterval(minute) AS time, {_GPU} AS member, {value} AS v
    FROM devices_per_minute AS d WHERE {WHERE} GROUP BY time, member HAVING v > 0
    """
    query = PanelQuery(worst(rows, "value", "sum(v)", bands=False), "time:t series:s member:s value:n")
    return Panel(
        "timeseries", title, description, query, "none", min_interval="1m", thresholds=ANY, series="{series}",
        marks=True, bars=True, width=6, height=6, key=key, empty=empty,
    )  # fmt: skip


#: Counters with a place of their own; those that come to the table stand behind them, three in a row.
_PLACED = {"power_mw", "memory_temperature", "sm_clock", "tensor_active", "sm_active", "dram_active"}
_UNPLACED = [_counter(counter.name) for counter in COUNTERS if counter.line and counter.name not in _PLACED]
_ROWS_UNPLACED = tuple(tuple(_UNPLACED[start : start + 3]) for start in range(0, len(_UNPLACED), 3))
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
        _counter("power_mw", width=12),
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
        _counter("memory_temperature"),
        _counter("sm_clock"),
    ),
    (_counter("tensor_active"), _counter("sm_active"), _counter("dram_active")),
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
    *_ROWS_UNPLACED,
    (
        _marks(
            "Slowed by heat or a power fault",
            "1 where a minute had HW slowdown, thermal or power-brake reasons; the power cap is left out. The "
            "alert needs more than two such minutes of five.",
            f"max(bitAnd(throttle_reasons, {CLOCK_FAULT_BITS}) != 0)",
            "throttle",
            "no GPU was slowed down",
        ),
        _marks(
            "Lost",
            "1 where a minute had a GPU that did not answer. Its job is named in the alert.",
            "ifNull(max(d.lost), 0)",
            "lost",
            "every GPU answers",
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


_FAULTS = (*LINK_ERROR_COLUMNS, "link_downs", "recoveries")


def _rows(value: str, having: str) -> str:
    return f"""
    SELECT $__timeInterval(time) AS time, concat(host, ' ', device) AS member, {value} AS v
    FROM network_samples AS n WHERE @hosts AND $__timeFilter_ms(n.time) GROUP BY time, member HAVING {having}
    """


TRAFFIC = Panel(
    "timeseries",
    "Links of hosts",
    "Received and sent, InfiniBand, RoCE and Ethernet.",
    PanelQuery(
        worst(_rows("sum(n.rx_bytes + n.tx_bytes) * 1e9 / sum(n.interval_ns)", "isNotNull(v)"), "value"),
        "time:t series:s member:s value:n",
    ),
    "Bps",
    min_interval="1m",
    series="{series}",
    empty="no link was sampled",
    width=12,
)
FAULTS = Panel(
    "timeseries",
    "Faults of links",
    "Errors of symbols and packets, overruns, times down and new trainings.",
    PanelQuery(
        worst(
            _rows("toFloat64(sum(" + " + ".join(f"ifNull(n.{name}, 0)" for name in _FAULTS) + "))", "v > 0"),
            "value",
            "sum(v)",
            bands=False,
        ),
        "time:t series:s member:s value:n",
    ),
    "none",
    min_interval="1m",
    thresholds=((1.0, "orange"), (LINK_ERRORS, "red")),
    marks=True,
    series="{series}",
    bars=True,
    key="links",
    empty="no link had a fault",
    width=12,
)
