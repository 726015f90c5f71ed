"""Alert rules on stragglers, links and copies of jobs."""

from __future__ import annotations

from drumline.infra.grafana.alerts import causes
from drumline.infra.grafana.alerts.links import LINK_DOWN, LINK_FAULTS, LINK_SLOW
from drumline.infra.grafana.alerts.rule import PLACE, Group, Rule, Values, of_active, with_limit
from drumline.infra.grafana.alerts.standstill import HUNG, STALLED
from drumline.infra.grafana.alerts.unevaluated import NEVER_REPORTED, UNEVALUATED
from drumline.infra.grafana.limits import BANDWIDTH as BANDWIDTH_LIMIT
from drumline.infra.grafana.limits import PAGEABLE as PAGEABLE_LIMIT
from drumline.infra.grafana.limits import STRAGGLER, limits_of_jobs
from drumline.infra.grafana.liveness import ACTIVE_RUNS, IN_FORCE, NEWEST_ATTEMPTS, places
from drumline.infra.grafana.thresholds import BANDWIDTH_RATIO, LEVEL_WARNING, PAGEABLE_SHARE
from drumline.infra.guidance.entry import JOB, NETWORK, cause_page


def _late(value: str, more: str = "", names: str = "") -> str:
    """Return a row for each rank of an active job with a bad window in the last minutes, or in the last four windows.

    A rank that recovers keeps its row and labels, so its alert is resolved with them. Labels say who it is and nothing
    that may change while it lasts: each set of labels is an alert of its own. `more`, `names`: further columns.
    """
    return f"""
        SELECT job, run, rank, host, if(number < 0, 'all', places.gpu) AS gpu,
            if(number < 0, 'none', places.pod) AS pod, value{names} FROM (
            SELECT job, run, s.rank AS number, if(number < 0, 'all', toString(number)) AS rank,
                if(number < 0, 'all hosts', argMax(s.host, window_end)) AS host, toFloat64({value}) AS value{more}
            FROM stragglers AS s WHERE (job, run) IN ({ACTIVE_RUNS}) AND @window AND {IN_FORCE}
                AND (job, run, s.attempt_start) IN ({NEWEST_ATTEMPTS})
            GROUP BY job, run, number HAVING countIf(@bad) > 0
        ) AS late LEFT JOIN ({places("job, run, rank", "number")}) AS places USING (job, run, number)
    """


def _level() -> str:
    """Return a row for each rank and severity, above 1.5 where that is in force; both, where it is critical.

    The row of the warning stays when a second one rises above it, so nothing is resolved in between. 0 where the job's
    own limit is above the share that the rank costs.
    """
    level, share = "argMaxIf(@level, window_end, @evaluated)", "argMaxIf(s.lost_share, window_end, @bad)"
    return f"""
        SELECT job, run, rank, host, gpu, pod, arrayJoin(['warning', 'critical']) AS severity,
            toFloat64(if(ifNull(own_limit, 0) > cost, 0, value - (severity = 'critical'))) AS value
        FROM ({_late(level, f", toFloat64({share}) AS cost", ", cost")}) AS leveled
        LEFT JOIN ({limits_of_jobs(STRAGGLER)}) AS own USING (job, run)
    """


def _python() -> str:
    """Return the rows of `_late` for each severity, with the line that the rank's Python was in most, "" = not sampled.

    That is what a stall without a detail leaves to say: of its main thread, in the newest sampling for a window in
    force with the present cause and detail. An earlier one may be of another stall.
    """
    present = (
        ", argMaxIf((s.cause, s.detail), window_end, @bad) AS present"
        ", groupArrayIf((s.first_step, s.cause, s.detail), @bad) AS windows"
    )
    return f"""
        SELECT job, run, rank, host, gpu, pod, arrayJoin(['warning', 'critical']) AS severity,
            arrayLast(l -> present.1 = 'host_stall' AND has(windows, (l.2, present.1, present.2)), lines).3 AS line,
            toFloat64(line != '') AS value
        FROM ({_late("max(@level)", present, ", present, windows")}) AS late LEFT JOIN (
            SELECT job, run, rank, arraySort(groupArray((latest, first_step, hottest))) AS lines FROM (
                SELECT job, run, toString(named_rank) AS rank, first_step, max(s.time) AS latest,
                    argMax(s.at, (s.time, s.samples)) AS hottest
                FROM stacks AS s
                WHERE verdict = 'straggler' AND role = 'culprit' AND is_main = 1
                    AND s.time >= $__toTime_ms - INTERVAL 1 HOUR
                GROUP BY job, run, rank, first_step
            ) GROUP BY job, run, rank
        ) AS sampled USING (job, run, rank)
    """


def _link() -> str:
    """Return the rows of `_late` for each severity, with who sends to whom over a slow link, "" = not known."""
    newest = ", argMaxIf((s.cause, s.evidence_json), window_end, @bad) AS present"
    flow = "JSONExtractArrayRaw(if(present.1 = 'slow_link', present.2, '{}'), 'flows')[1] AS flow"
    ends = (
        f"concat('rank ', toString(JSONExtractInt(flow, '{end}')), ' on ', JSONExtractString(flow, '{end}_host'))"
        for end in ("from", "to")
    )
    return f"""
        SELECT job, run, rank, host, gpu, pod, arrayJoin(['warning', 'critical']) AS severity,
            if(flow = '', '', concat({", ' to ', ".join(ends)})) AS link, toFloat64(flow != '') AS value
        FROM (SELECT *, {flow} FROM ({_late("max(@level)", newest, ", present")}))
    """


_CAUSE = causes.number("argMaxIf(cause, window_end, @bad)", "argMaxIf(detail, window_end, @bad)")
_LATE = (
    of_active(_level()),
    Values(_late("argMaxIf(@level, window_end, @evaluated)"), "LEVEL"),
    Values(_late("argMaxIf(s.lost_share, window_end, @bad)"), "SHARE"),
    Values(_late("sum(s.gpu_seconds_lost)"), "GPU_SECONDS"),
    Values(_late("sum(s.money_lost)"), "MONEY"),
    Values(_late(_CAUSE), "CAUSE"),
    of_active(_python(), "PYTHON"),
    of_active(_link(), "LINK"),
)
_SUMMARY = (
    "{{ $labels.job }}: rank {{ $labels.rank }} on {{ $labels.host }} costs "
    "{{ humanizePercentage $values.SHARE.Value }} of the job's time (" + causes.text("CAUSE", causes.NAMES) + ")"
)
_DESCRIPTION = (
    "Cause: "
    + causes.text("CAUSE", causes.MEANINGS)
    + ".{{ if gt $values.PYTHON.Value 0.0 }} Its Python: {{ $values.PYTHON.Labels.line }}.{{ end }}"
    "{{ if gt $values.LINK.Value 0.0 }} Slowest: {{ $values.LINK.Labels.link }}.{{ end }} GPU: "
    "{{ $labels.gpu }}. " + PLACE + "Run {{ $labels.run }}. In the last 15 "
    "minutes, or four windows of steps where those are longer, it cost "
    "{{ humanizeDuration $values.GPU_SECONDS.Value }} of GPU time"
    '{{ if gt $values.MONEY.Value 0.0 }}, money {{ printf "%.2f" $values.MONEY.Value }}{{ end }}.'
    '{{ if eq $labels.rank "all" }} It is a link, or all ranks together.{{ end }}'
)
_CHECK = causes.text("CAUSE", causes.CHECKS)
_ACT = causes.text("CAUSE", causes.ACTS)
_ESCALATE = causes.text("CAUSE", causes.ESCALATIONS)
_JOB = {"job": "job", "run": "run"}

STRAGGLER_RULE = Rule(
    "drumline-straggler", "Straggler", "warning", _LATE,
    "gt", (LEVEL_WARNING - 0.5,), 86_400, _SUMMARY, _DESCRIPTION, _CHECK, _ACT,
    "Level `warning` or `critical` in force: a rank cost 4% of the job's time, or 20%, in two of three windows of "
    "steps. An alert has the label `severity=warning` while it lasts; at `critical` the rank has one with "
    "`severity=critical` too, so that it rises and is not resolved in between. The annotation `level` is the "
    "present one. The rule fires at once: the worker has waited for the windows already. A verdict counts "
    "for 15 minutes, or four times as long as its window of steps where that is longer, while the job is active.",
    ("drumline-stragglers", "lost"), _JOB, job_limit=STRAGGLER, opens_rank=True, escalate=_ESCALATE,
    level="{{ if ge $values.LEVEL.Value 3.0 }}critical{{ else }}warning{{ end }}",
    guide=causes.text("CAUSE", causes.PAGES, cause_page("unknown")),
)  # fmt: skip


_MIB = 1 << 20
BANDWIDTH = Rule(
    "drumline-collective-bandwidth", "Collectives slower than before", "warning",
    (
        *with_limit(
            f"""
            SELECT job, run, operation, communicator, quantile(0.5)(ratio) AS value FROM (
                SELECT job, run, operation, communicator, bytes,
                    quantileIf(0.5)(speed, at >= $__toTime_ms - INTERVAL 5 MINUTE)
                        / quantileIf(0.5)(speed, at < $__toTime_ms - INTERVAL 5 MINUTE) AS ratio
                FROM (
                    SELECT job, run, operation, communicator, bytes, min(start) AS at, bytes / min(duration_ns) AS speed
                    FROM collectives WHERE $__timeFilter_ms(start) AND duration_ns > 0 AND bytes >= {_MIB}
                        AND (job, run) IN ({ACTIVE_RUNS})
                    GROUP BY job, run, operation, communicator, bytes, step, ordinal HAVING count() > 1
                )
                GROUP BY job, run, operation, communicator, bytes
                HAVING countIf(at >= $__toTime_ms - INTERVAL 5 MINUTE) >= 20
                    AND countIf(at < $__toTime_ms - INTERVAL 5 MINUTE) >= 20
            ) GROUP BY job, run, operation, communicator
            """,
            BANDWIDTH_LIMIT,
        ),
    ),
    "lt", (BANDWIDTH_RATIO,), 3600,
    "{{ $labels.job }}: {{ $labels.operation }} runs at {{ humanizePercentage $values.VALUE.Value }} of its bandwidth "
    "before",
    "Run {{ $labels.run }}, communicator {{ $labels.communicator }}: the last 5 minutes against the 55 before, sizes "
    "compared with themselves, "
    "waiting for late ranks left out.",
    "Check links of its hosts: `drumline sql network --job JOB`, `nvidia-smi nvlink -e`.",
    "Have ports with errors repaired; move the job off the link if it stays slow.",
    "1.3 times the time for the same collectives, the limit of the verdict `slow_link`; shortest durations of "
    "healthy windows "
    "vary by some percent.",
    ("drumline-stragglers", "bandwidth"), _JOB, for_s=300, job_limit=BANDWIDTH_LIMIT,
)  # fmt: skip
PAGEABLE = Rule(
    "drumline-memcpy-pageable", "Flood of pageable copies", "warning",
    (
        *with_limit(
            f"""
            SELECT job, run, toString(number) AS rank, host, if(places.pod = '', 'none', places.pod) AS pod,
                busy_s / active_s AS value
            FROM (
                SELECT job, run, rank AS number, any(host) AS host, sumIf(busy_ns,
                    source = 'pageable' OR target = 'pageable') / 1e9 AS busy_s
                FROM memcpys_per_minute WHERE @minute AND (job, run) IN ({ACTIVE_RUNS}) GROUP BY job, run, rank
            ) AS copied INNER JOIN (
                SELECT job, run, rank AS number, uniqExact(second) AS active_s FROM ranks_per_second
                WHERE second >= toStartOfMinute($__fromTime) AND second <= $__toTime GROUP BY job, run, rank
                    HAVING active_s >= 10
            ) AS active USING (job, run, number)
            LEFT JOIN ({places("job, run, rank", "number")}) AS places USING (job, run, number)
            """,
            PAGEABLE_LIMIT,
        ),
    ),
    "gt", (PAGEABLE_SHARE,), 300,
    "{{ $labels.job }}: rank {{ $labels.rank }} on {{ $labels.host }} spends {{ humanizePercentage $values.VALUE.Value "
    "}} of its time in pageable copies",
    "Run {{ $labels.run }}: copies from or to pageable host memory block the stream and cannot overlap. " + PLACE,
    "The dashboard Memcpy shows which copies of the rank are pageable.",
    "Use pinned memory: `pin_memory=True`, `non_blocking=True`.",
    "4% of the rank's active time, the share at which a straggler is a warning.",
    ("drumline-memcpy", "pageable"), _JOB, for_s=60, job_limit=PAGEABLE_LIMIT, escalate=JOB,
    opens_rank=True,
)  # fmt: skip

JOBS = Group("drumline-jobs", 30, JOB, (STRAGGLER_RULE, HUNG, STALLED, UNEVALUATED, NEVER_REPORTED))
LINKS = Group("drumline-links", 60, NETWORK, (BANDWIDTH, PAGEABLE, LINK_DOWN, LINK_SLOW, LINK_FAULTS))
