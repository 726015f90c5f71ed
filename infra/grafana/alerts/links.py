"""Alert rules on the links of hosts."""

from __future__ import annotations

from drumline.infra.grafana.alerts.rule import Rule, Values
from drumline.infra.grafana.thresholds import LINK_ERRORS
from drumline.schemas.counters import LINK_ERROR_COLUMNS

_SHOWS, _SELECTS = ("drumline-devices", "links"), {"host": "host"}
_ERRORS = " + ".join(f"ifNull({name}, 0)" for name in LINK_ERROR_COLUMNS)


def _links(value: str, texts: str = "", ref: str = "A") -> Values:
    return Values(
        f"SELECT host, device{texts}, toFloat64({value}) AS value FROM network_samples WHERE @sample "
        "GROUP BY host, device",
        ref,
    )


LINK_DOWN = Rule(
    "drumline-link-down", "Link down", "critical",
    (_links("ifNull(argMax(is_down, time), 0)"),),
    "gt", (0.0,), 3600,
    "Link {{ $labels.device }} of {{ $labels.host }} is down",
    "{{ $labels.device }} of {{ $labels.host }} was up before, or a speed is set for it. "
    "Collectives over it hang or use another path.",
    "`ibstat` or `ip link` on the host, and the switch's port on the other side. The dashboard Device health has its "
    "errors before it went down.",
    "Reseat or replace cable and transceiver; drain the host until the link is up.",
    "A link that was up since the agent began, or that `DRUMLINE_AGENT__LINKS` names, is never right when it is down. "
    "Other ports without a cable were never up.",
    _SHOWS, _SELECTS,
)  # fmt: skip
LINK_SLOW = Rule(
    "drumline-link-slow", "Link slower than it should be", "warning",
    (
        _links("ifNull(argMax(if(speed_mbps < expected_mbps, 1, 0), time), 0)"),
        _links("1", ", if(argMax(reason, time) = '', 'nothing', argMax(reason, time)) AS why", "WHY"),
    ),
    "gt", (0.0,), 600,
    "Link {{ $labels.device }} of {{ $labels.host }} is slow: {{ $values.WHY.Labels.why }}",
    "{{ $labels.device }} of {{ $labels.host }} is up at less than its speed: every collective over it waits.",
    "`ibstat` and `mlxlink -d DEVICE`, or `ethtool DEVICE`, show speed and width.",
    "Train the link again (port off and on); replace cable or transceiver if it comes back slow.",
    "The speed that `DRUMLINE_AGENT__LINKS` wants, or the best that the agent saw: a link does not become slower by "
    "design. For two minutes: training takes seconds.",
    _SHOWS, _SELECTS, for_s=120,
)  # fmt: skip
LINK_FAULTS = Rule(
    "drumline-link-errors", "Link with errors", "warning",
    (_links(f"sum({_ERRORS} + ifNull(link_downs, 0) * {LINK_ERRORS:.0f} + ifNull(recoveries, 0))"),),
    "gt", (LINK_ERRORS,), 600,
    "Link {{ $labels.device }} of {{ $labels.host }}: {{ $values.A.Value }} errors in 10 minutes",
    "{{ $labels.device }} of {{ $labels.host }}: wrong symbols or packets, overruns, new trainings; a time down counts "
    "as ten.",
    "`drumline sql network --host HOST` has each count; `mlxlink -d DEVICE -c` or `ethtool -S DEVICE` has more.",
    "Clean or replace cable and transceiver; drain the host if jobs are slow.",
    "At 400 Gbit/s and a bit error rate of 1e-15 a link has 1.4 errors an hour; ten in ten minutes are 40 times as "
    "many.",
    _SHOWS, _SELECTS,
)  # fmt: skip
