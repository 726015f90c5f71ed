"""Alert rules on jobs and ranks."""

from __future__ import annotations

from drumline.infra.grafana.alerts import causes
from drumline.infra.grafana.alerts.rule import Group, Rule, Values
from drumline.infra.grafana.liveness import ACTIVE_RUNS, IN_FORCE, NOT_RECORDED
from drumline.infra.grafana.thresholds import (
    ACTIVE_S,
    BANDWIDTH_RATIO,
    LEVEL_CRITICAL,
    LEVEL_WARNING,
    PAGEABLE_SHARE,
    STALLED_PAUSES,
    STALLED_S,
    STALLED_STEPS,
)


def _late(value: str, ref: str) -> Values:
    """Return a row for each rank of an active job with a bad window in the last minutes, or in the last four windows.

    A rank that recovers keeps its row and labels, so its alert is resolved with them. Labels say who it is and nothing
    that may change while it lasts: each set of labels is an alert of its own.
    """
    return Values(
        f"""
        SELECT job, run, rank, host, if(number < 0, 'all', places.gpu) AS gpu, value FROM (
            SELECT job, run, s.rank AS number, if(number < 0, 'all', toString(number)) AS rank,
                if(number < 0, 'all hosts', argMax(s.host, window_end)) AS host, toFloat64({value}) AS value
            FROM stragglers AS s WHERE (job, run) IN ({ACTIVE_RUNS}) AND @window AND {IN_FORCE}
            GROUP BY job, run, number HAVING countIf(@bad) > 0
        ) AS late LEFT JOIN (
            SELECT job, run, rank AS number, concat('GPU ', toString(any(gpu_index)), ' ', any(gpu_uuid)) AS gpu
            FROM processes GROUP BY job, run, rank
        ) AS places USING (job, run, number)
        """,
        ref,
    )


_LATE = (
    _late("argMaxIf(@level, window_end, @evaluated)", "A"),
    _late("argMaxIf(s.lost_share, window_end, @bad)", "SHARE"),
    _late("sum(s.gpu_seconds_lost)", "GPU_SECONDS"),
    _late("sum(s.money_lost)", "MONEY"),
    _late(causes.number("argMaxIf(cause, window_end, @bad)", "argMaxIf(detail, window_end, @bad)"), "CAUSE"),
)
_SUMMARY = (
    "{{ $labels.job }}: rank {{ $labels.rank }} on {{ $labels.host }} costs "
    "{{ humanizePercentage $values.SHARE.Value }} of the job's time (" + causes.text("CAUSE", causes.NAMES) + ")"
)
_DESCRIPTION = (
    "Cause: "
    + causes.text("CAUSE", causes.MEANINGS)
    + ". GPU: {{ $labels.gpu }}. Run {{ $labels.run }}. In the last 15 "
    "minutes, or four windows of steps where those are longer, it cost "
    "{{ humanizeDuration $values.GPU_SECONDS.Value }} of GPU time"
    '{{ if gt $values.MONEY.Value 0.0 }}, money {{ printf "%.2f" $values.MONEY.Value }}{{ end }}. '
    "Rank `all`: a link or all ranks together."
)
_ACTION = causes.text("CAUSE", causes.ACTIONS)
_STRAGGLERS = ("drumline-stragglers", "lost")
_JOB = {"job": "job", "run": "run"}

WARNING = Rule(
    "drumline-straggler-warning", "Straggler", "warning", _LATE,
    "gt", (LEVEL_WARNING - 0.5,), 86_400, _SUMMARY, _DESCRIPTION, _ACTION,
    "Level `warning` or `critical` in force, so that a rank that becomes worse is not resolved in between: a rank cost "
    "4% of the job's time or more in two of three windows of steps. Recurrence and hysteresis are the stream "
    "processor's, so the rule waits no longer. A verdict counts for 15 minutes, or four times as long as its window of "
    "steps where that is longer, while the job is active.",
    _STRAGGLERS, _JOB,
)  # fmt: skip
CRITICAL = Rule(
    "drumline-straggler-critical", "Straggler, critical", "critical", _LATE,
    "gt", (LEVEL_CRITICAL - 0.5,), 86_400, _SUMMARY, _DESCRIPTION, _ACTION,
    "Level `critical` in force: 20% or more, every fifth step is lost.",
    _STRAGGLERS, _JOB,
)  # fmt: skip


def _stalled(value: str, ref: str) -> Values:
    """Return a row for each active and recorded run. Steps are read only for runs without one for STALLED_S."""
    return Values(
        f"""
        WITH active_jobs AS (
            SELECT job, run, maxIf(last_published, @produced) AS last_record,
                maxIf(time_max, topic = 'gpu.step.v1' AND rows > 0) AS last_step
            FROM records_per_minute WHERE @minute AND run != '' AND (job, run) NOT IN ({NOT_RECORDED})
            GROUP BY job, run
            HAVING last_record > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND AND last_step > $__fromTime_ms
        ), suspects AS (
            SELECT job, run, last_step FROM active_jobs WHERE dateDiff('second', last_step, last_record) > {STALLED_S}
        )
        SELECT job, run, toFloat64({value}) AS value FROM (
            SELECT job, run, dateDiff('second', greatest(last_step, last_end), last_record) AS ago_s,
                greatest({STALLED_S}, {STALLED_STEPS} * longest_s, {STALLED_PAUSES} * pause_s) AS limit_s
            FROM active_jobs LEFT JOIN (
                SELECT job, run, max(addNanoseconds(s.start, s.duration_ns)) AS last_end,
                    max(s.duration_ns) / 1e9 AS longest_s,
                    arrayMax(arrayDifference(arraySort(groupUniqArray(toUnixTimestamp(s.start))))) AS pause_s
                FROM steps AS s INNER JOIN suspects USING (job, run)
                WHERE $__timeFilter_ms(start) AND job IN (SELECT job FROM suspects)
                    AND start >= (SELECT min(last_step) FROM suspects) - INTERVAL 1 HOUR
                    AND start >= last_step - INTERVAL 1 HOUR
                GROUP BY job, run
            ) AS stepping USING (job, run)
        )
        """,
        ref,
    )


STALLED = Rule(
    "drumline-job-stalled", "Job stalled", "critical",
    (_stalled("ago_s / limit_s", "A"), _stalled("ago_s", "AGO"), _stalled("limit_s", "LIMIT")),
    "gt", (1.0,), 86_400,
    "{{ $labels.job }} has finished no step for {{ humanizeDuration $values.AGO.Value }}",
    "Run {{ $labels.run }}: its processes are active and recorded, and by its last hour a step should have come within "
    "{{ humanizeDuration $values.LIMIT.Value }}. Hung collective, deadlock, or an evaluation or checkpoint longer than "
    "any in that hour.",
    "Is it an evaluation or a checkpoint? If not, find the rank that did not call the collective that the others wait "
    "in: stacks of all ranks (`py-spy dump --pid PID`). Then end and restart the job.",
    "Fires without a step for 5 times the longest step, and for twice the longest time from step to step, of the hour "
    "before the last one. Evaluations and checkpoints count in that time. The least is 300 s: half of the 10 minutes "
    "after which PyTorch by default ends a job whose NCCL collective hangs. A first "
    "evaluation of more than 6 minutes does fire: raise `STALLED_S` in "
    "`infra/grafana/thresholds.py` and generate. Runs that are not recorded now (policy `off`, another profiler) or "
    "only in windows (`duty`) are left out, and so are jobs that ended: they are silent. The last step is searched in "
    "24 hours, so that the alert stays while the job hangs.",
    ("drumline-job", "steps"), _JOB, for_s=60, no_data="OK",
)  # fmt: skip


def _hung(value: str, ref: str) -> Values:
    """Return a row for each rank that a hung job waits for, or for the job (`all`) where none is named.

    `line`: where its main thread was when it was sampled first, so that the label does not change while it lasts.
    """
    return Values(
        f"""
        SELECT job, run, if(number < 0, 'all', toString(number)) AS rank,
            if(number < 0, 'any host', host) AS host, reason, operation, note,
            if(line != '', line, 'not sampled') AS line, toFloat64(if(state = 'hung', {value}, 0)) AS value
        FROM (
            SELECT job, run, h.rank AS number, host, h.state AS state, h.reason AS reason, operation, note,
                h.start AS since,
                countIf(h.rank >= 0) OVER (PARTITION BY job, run) AS named
            FROM hangs_now AS h WHERE (job, run) IN ({ACTIVE_RUNS})
        ) AS standing LEFT JOIN (
            SELECT job, run, named_rank AS number, window_start AS since, argMin(s.at, (s.time, -s.samples)) AS line
            FROM stacks AS s WHERE verdict = 'hang' AND role = 'culprit' AND is_main = 1
            GROUP BY job, run, number, since
        ) AS sampled USING (job, run, number, since) WHERE number >= 0 OR named = 0
        """,
        ref,
    )


HUNG = Rule(
    "drumline-job-hung", "Job hung", "critical",
    (_hung("dateDiff('second', since, $__toTime_ms)", "A"),),
    "gt", (0.0,), 86_400,
    "{{ $labels.job }} is hung: rank {{ $labels.rank }} on {{ $labels.host }} ({{ $labels.reason }} "
    "{{ $labels.operation }})",
    "{{ $labels.note }} Run {{ $labels.run }} has stood still for {{ humanizeDuration $values.A.Value }}. Rank `all`: "
    "no rank could be named. Its Python: {{ $labels.line }}.",
    "Look at the named rank: its log, and `drumline sql hot-stacks --job JOB`. `not_called`: what its Python does "
    "instead. `gone`, `stopped`: who ended or stopped its process. `mismatch`, `deadlock`: a fault of the program. "
    "`not_started`, `not_ended`: its GPU and link (XID, `nvidia-smi`). Then end the job: it "
    "goes on from its checkpoint.",
    "State `hung` of `hangs`: no rank has called or ended an operation of NCCL for `DRUMLINE_STREAM__HUNG_S` (120 s) "
    "while others wait. Longer checkpoints and evaluations of one rank: raise it. Needs NCCL's plugin (policy `auto`, "
    "the default, or `light`). The alert is resolved when the job goes on or is over.",
    ("drumline-job", "hangs"), _JOB,
)  # fmt: skip
_MIB = 1 << 20
BANDWIDTH = Rule(
    "drumline-collective-bandwidth", "Collectives slower than before", "warning",
    (
        Values(
            f"""
            SELECT job, run, operation, communicator, quantile(0.5)(ratio) AS value FROM (
                SELECT job, run, operation, communicator, bytes,
                    quantileIf(0.5)(speed, at >= $__toTime_ms - INTERVAL 5 MINUTE)
                        / quantileIf(0.5)(speed, at < $__toTime_ms - INTERVAL 5 MINUTE) AS ratio
                FROM (
                    SELECT job, run, operation, communicator, bytes, min(start) AS at, bytes / min(duration_ns) AS speed
                    FROM collectives WHERE $__timeFilter_ms(start) AND duration_ns > 0 AND bytes >= {_MIB}
                    GROUP BY job, run, operation, communicator, bytes, step, ordinal HAVING count() > 1
                )
                GROUP BY job, run, operation, communicator, bytes
                HAVING countIf(at >= $__toTime_ms - INTERVAL 5 MINUTE) >= 20
                    AND countIf(at < $__toTime_ms - INTERVAL 5 MINUTE) >= 20
            ) GROUP BY job, run, operation, communicator
            """
        ),
    ),
    "lt", (BANDWIDTH_RATIO,), 3600,
    "{{ $labels.job }}: {{ $labels.operation }} runs at {{ humanizePercentage $values.A.Value }} of its bandwidth "
    "before",
    "Run {{ $labels.run }}, communicator {{ $labels.communicator }}: the last 5 minutes against the 55 before, sizes "
    "compared with themselves, "
    "waiting for late ranks left out.",
    "Check links of the hosts of this communicator: `ibstat`, `ethtool -S`, `nvidia-smi nvlink -e`. Ask the network's "
    "owner about ports with errors.",
    "1.3 times the time for the same collectives, the limit of the verdict `slow_link`; shortest durations of "
    "healthy windows "
    "vary by some percent.",
    ("drumline-stragglers", "bandwidth"), _JOB, for_s=300,
)  # fmt: skip
PAGEABLE = Rule(
    "drumline-memcpy-pageable", "Flood of pageable copies", "warning",
    (
        Values(
            """
            SELECT job, run, toString(rank) AS rank, host, busy_s / active_s AS value FROM (
                SELECT job, run, rank, any(host) AS host, sumIf(busy_ns,
                    source = 'pageable' OR target = 'pageable') / 1e9 AS busy_s
                FROM memcpys_per_minute WHERE @minute GROUP BY job, run, rank
            ) AS copied INNER JOIN (
                SELECT job, run, rank, uniqExact(second) AS active_s FROM ranks_per_second
                WHERE second >= toStartOfMinute($__fromTime) AND second <= $__toTime GROUP BY job, run, rank
                    HAVING active_s >= 10
            ) AS active USING (job, run, rank)
            """
        ),
    ),
    "gt", (PAGEABLE_SHARE,), 300,
    "{{ $labels.job }}: rank {{ $labels.rank }} on {{ $labels.host }} spends {{ humanizePercentage $values.A.Value "
    "}} of its time in pageable copies",
    "Run {{ $labels.run }}.",
    "Ask the job's owner to use pinned memory: `pin_memory=True`, `non_blocking=True`.",
    "4% of the rank's active time, the share at which a straggler is a warning: copies from pageable memory block "
    "the stream "
    "and cannot overlap.",
    ("drumline-memcpy", "pageable"), {**_JOB, "rank": "rank"}, for_s=60,
)  # fmt: skip

JOBS = Group("drumline-jobs", 30, (WARNING, CRITICAL, HUNG, STALLED))
LINKS = Group("drumline-links", 60, (BANDWIDTH, PAGEABLE))
