"""Alert rules on jobs that stand still."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.infra.grafana.alerts.rule import NO_RANK, PLACE, Rule, Values, of_active
from drumline.infra.grafana.limits import HUNG as HUNG_LIMIT
from drumline.infra.grafana.limits import STALLED as STALLED_LIMIT
from drumline.infra.grafana.limits import limits_of_jobs
from drumline.infra.grafana.liveness import ACTIVE_RUNS, IN_ORDER, LAST_RECORDS, not_recorded, places
from drumline.infra.grafana.thresholds import HUNG_MARGIN_S, STALLED_PAUSES, STALLED_S, STALLED_STEPS, STANDING_S
from drumline.infra.guidance.entry import cause_page
from drumline.infra.guidance.hangs import HANGS
from drumline.schemas.topics import Topic

_JOB = {"job": "job", "run": "run"}
_ACTIVE = "SELECT r.1 AS job, r.2 AS run FROM (SELECT arrayJoin(active) AS r)"
#: Runs in which ranks wait for one, and since when.
_AWAITING = """
    SELECT h.job AS job, h.run AS run, h.state AS stands, h.start AS since FROM hangs_now AS h
    WHERE h.rank = -1 AND h.waiting > 0 AND h.state IN ('standing', 'hung')
    """
#: Whether that is why no step comes, so that `Job hung` pages or will: not one from before the last step; and of those
#: that are not hung yet none that began late, as in a job that moves now and then and is never hung, and none older
#: than what PyTorch lets a collective take, as of a run whose state the stream processor has lost.
_EXPLAINS = (
    f"(since >= last_step - INTERVAL {HUNG_MARGIN_S:g} SECOND AND (stands = 'hung' OR ("
    f"since <= last_step + INTERVAL {STALLED_S:g} SECOND AND since > $__toTime_ms - INTERVAL {STANDING_S:g} SECOND)))"
)


def _stalled(value: str) -> str:
    """Return a row for each active and recorded run. Steps are read only for runs without one for STALLED_S.

    The runs are arrays, which are made once: a named part of a statement is evaluated wherever it is read.
    """
    return f"""
        WITH (SELECT groupArray((job, run, last_record)) FROM ({LAST_RECORDS})) AS active, (
            SELECT groupArray((job, run, last_record, last_step)) FROM (
                SELECT arrayJoin(active) AS r, r.1 AS job, r.2 AS run, r.3 AS last_record
            ) AS recording INNER JOIN (
                SELECT job, run, max(time_max) AS last_step FROM records_per_minute
                WHERE @minute AND topic = '{Topic.STEP}' AND rows > 0 GROUP BY job, run {IN_ORDER}
            ) AS stepped USING (job, run) LEFT JOIN ({_AWAITING}) AS awaiting USING (job, run)
            WHERE last_step > $__fromTime_ms AND (job, run) NOT IN ({not_recorded(_ACTIVE)}) AND NOT {_EXPLAINS}
        ) AS stepping, arrayFilter(r -> dateDiff('second', r.4, r.3) > {STALLED_S}, stepping) AS suspects
        SELECT job, run, toFloat64({value}) AS value FROM (
            SELECT job, run, dateDiff('second', greatest(last_step, last_end), last_record) AS ago_s,
                greatest(ifNull(own_limit, 0), {STALLED_S}, {STALLED_STEPS} * longest_s,
                    {STALLED_PAUSES} * pause_s) AS limit_s
            FROM (
                SELECT arrayJoin(stepping) AS r, r.1 AS job, r.2 AS run, r.3 AS last_record, r.4 AS last_step
            ) AS active_jobs LEFT JOIN (
                SELECT job, run, max(addNanoseconds(s.start, s.duration_ns)) AS last_end,
                    max(s.duration_ns) / 1e9 AS longest_s,
                    arrayMax(arrayDifference(arraySort(groupUniqArray(toUnixTimestamp(s.start))))) AS pause_s
                FROM steps AS s INNER JOIN (
                    SELECT arrayJoin(suspects) AS r, r.1 AS job, r.2 AS run, r.4 AS last_step
                ) AS suspected USING (job, run)
                WHERE $__timeFilter_ms(start) AND job IN (SELECT arrayJoin(suspects).1)
                    AND start >= arrayMin(r -> r.4, suspects) - INTERVAL 1 HOUR
                    AND start >= last_step - INTERVAL 1 HOUR
                GROUP BY job, run
            ) AS stepped USING (job, run) LEFT JOIN ({limits_of_jobs(STALLED_LIMIT)}) AS own USING (job, run)
        )
        """


STALLED = Rule(
    "drumline-job-stalled", "Job stalled", "critical",
    (of_active(_stalled("ago_s / limit_s")), Values(_stalled("ago_s"), "AGO"), Values(_stalled("limit_s"), "LIMIT")),
    "gt", (1.0,), 86_400,
    "{{ $labels.job }} has finished no step for {{ humanizeDuration $values.AGO.Value }}",
    "Run {{ $labels.run }}: its processes are active and recorded, and by its last hour a step should have come within "
    "{{ humanizeDuration $values.LIMIT.Value }}. Hung collective, deadlock, or an evaluation or checkpoint longer than "
    "any in that hour.",
    "Is it an evaluation or a checkpoint? If not, find the rank that did not call the collective that the others wait "
    "in: stacks of all ranks (`py-spy dump --pid PID`).",
    "If it hangs, end and restart the job: it goes on from its checkpoint. An evaluation or a checkpoint "
    "ends by itself.",
    "Fires without a step for 5 times the longest step, and for twice the longest time from step to step, of the hour "
    "before the last one. Evaluations and checkpoints count in that time. The least is 300 s: half of the 10 minutes "
    "after which PyTorch by default ends a job whose NCCL collective hangs. A first "
    "evaluation of more than 6 minutes does fire: give such jobs a limit of their own. Runs that are not recorded now "
    "(policy `off`, another profiler) are left out, and so are jobs that ended: they are silent. Jobs hung since the "
    "last step are left to `Job hung`, which has a limit of its own; so are, for 10 minutes, those in which "
    "ranks have waited since then. The last step is searched in "
    "24 hours, so that the alert stays while the job hangs.",
    ("drumline-job", "steps"), _JOB, for_s=60, no_data="OK", job_limit=STALLED_LIMIT,
)  # fmt: skip


_PLACES = places("job, run, rank", "number", "SELECT job, run FROM hangs_now")


def _hung(value: str, texts: str, join: tuple[str, str]) -> str:
    """Return a row for each rank that a hung job waits for, or for the job (`all`) where none is named."""
    return f"""
        SELECT job, run, if(number < 0, 'all', toString(number)) AS rank,
            if(number < 0, 'any host', host) AS host,
            if(number < 0 OR places.pod = '', 'none', places.pod) AS pod{texts}, toFloat64({value}) AS value
        FROM (
            SELECT job, run, h.rank AS number, host, h.reason AS reason, operation, note, h.start AS since,
                if(h.state = 'hung', dateDiff('second', since, $__toTime_ms), 0) AS ago_s,
                countIf(h.rank >= 0) OVER (PARTITION BY job, run) AS named
            FROM hangs_now AS h WHERE (job, run) IN ({ACTIVE_RUNS})
        ) AS standing LEFT JOIN ({join[0]}) AS joined USING ({join[1]})
        LEFT JOIN ({_PLACES}) AS places USING (job, run, number)
        WHERE number >= 0 OR named = 0
        """


_AGO = _hung("if(ago_s > ifNull(own_limit, 0), ago_s, 0)", "", (limits_of_jobs(HUNG_LIMIT), "job, run"))
#: What may change while it lasts. `line`: where its main thread was when it was sampled first.
_COMMANDS = "'--job JOB', concat('--job \\'', replaceAll(job, '\\'', ''), '\\'')"


def _guide(texts: Sequence[str]) -> str:
    """Return SQL of the text for the row's reason, with the job in its commands; a reason is no label of the alert."""
    quoted = ", ".join("'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in texts)
    chosen = f"transform(reason, {[entry.detail for entry in HANGS]}, [{quoted}], 'The linked section has it.')"
    return f"replaceAll({chosen}, {_COMMANDS})"


_REASON = _hung(
    "ago_s", f", reason, operation, note, line, {_guide([e.check for e in HANGS])} AS check, "
    f"{_guide([e.act for e in HANGS])} AS act",
    (
        """
        SELECT job, run, named_rank AS number, window_start AS since, argMin(s.at, (s.time, -s.samples)) AS line
        FROM stacks AS s WHERE verdict = 'hang' AND role = 'culprit' AND is_main = 1 GROUP BY job, run, number, since
        """,
        "job, run, number, since",
    ),
)  # fmt: skip
HUNG = Rule(
    "drumline-job-hung", "Job hung", "critical",
    (of_active(_AGO), of_active(_REASON, "WHY")),
    "gt", (0.0,), 86_400,
    "{{ $labels.job }} is hung: rank {{ $labels.rank }} on {{ $labels.host }} ({{ $values.WHY.Labels.reason }} "
    "{{ $values.WHY.Labels.operation }})",
    "{{ $values.WHY.Labels.note }} " + PLACE + "Run {{ $labels.run }} has stood still for "
    "{{ humanizeDuration $values.A.Value }}. " + NO_RANK
    + "{{ if ne $values.WHY.Labels.line \"\" }}Its Python: {{ $values.WHY.Labels.line }}.{{ end }}",
    "{{ $values.WHY.Labels.check }}",
    "{{ $values.WHY.Labels.act }}",
    "State `hung` of `hangs`: no rank has called or ended an operation of NCCL for `DRUMLINE_STREAM__HUNG_S` (120 s) "
    "while others wait. Longer checkpoints and evaluations of one rank: raise it, or the limit of such jobs. Needs "
    "NCCL's plugin (policy `auto`, the default, or `light`). CUPTI alone shows only who gives its GPU nothing while "
    "others wait. The alert is resolved when the job goes on or is over.",
    ("drumline-job", "hangs"), _JOB, job_limit=HUNG_LIMIT, opens_rank=True,
    guide=cause_page("hung", "{{ $values.WHY.Labels.reason }}"),
)  # fmt: skip
