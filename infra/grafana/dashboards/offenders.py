"""Device health: GPUs and hosts that were at fault again and again, over all jobs."""

from __future__ import annotations

from drumline.infra.grafana.model import Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY

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
