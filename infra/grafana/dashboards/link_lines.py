"""Traffic and faults of the hosts' links, of the dashboard Device health."""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.model import Panel, PanelQuery
from drumline.infra.grafana.thresholds import LINK_ERRORS
from drumline.schemas.counters import LINK_ERROR_COLUMNS

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
