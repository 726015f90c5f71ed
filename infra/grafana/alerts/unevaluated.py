"""Alert rules on jobs of which a part is not seen: windows of steps (infra/clickhouse/coverage.py), and ranks."""

from __future__ import annotations

from drumline.infra.clickhouse.coverage import (
    LEAST_WINDOWS,
    MOST_MISSING,
    NO_STEPS_S,
    RECENT_S,
    UNREPORTED,
    recent,
)
from drumline.infra.grafana.alerts import causes
from drumline.infra.grafana.alerts.rule import Rule, Values, of_active
from drumline.infra.grafana.liveness import ACTIVE_RUNS
from drumline.infra.guidance.causes import CAUSES, INSUFFICIENT_DATA, WITHOUT_WINDOWS
from drumline.infra.guidance.entry import DRUMLINE

#: Reasons, as their numbers stand for them in messages. A worker that is down is left to `Results lag behind`.
_REASONS = [entry for entry in (*CAUSES, *WITHOUT_WINDOWS) if entry.cause == INSUFFICIENT_DATA]
_DETAILS = ", ".join(f"'{entry.detail}'" for entry in _REASONS)
_RECENT = recent(f"(job, run) IN ({ACTIVE_RUNS})", "$__toTime_ms", "@minute")


def _unevaluated(value: str) -> str:
    """Return a row for each active run. `value`: of its counts."""
    return f"""
        SELECT job, run, toFloat64({value}) AS value FROM ({_RECENT}) AS counted
        """


#: Share of the windows that were not evaluated; all of them where no step is known; none where too few tell.
_MISSING = (
    f"multiIf(reason = 'no_steps', 1, windows < {LEAST_WINDOWS} OR reason = 'no_verdict', 0, 1 - evaluated / windows)"
)
_MEANING = causes.text("REASON", [entry.meaning for entry in _REASONS])
UNEVALUATED = Rule(
    "drumline-job-unevaluated", "Job cannot be evaluated", "warning",
    (
        of_active(_unevaluated(_MISSING)),
        Values(_unevaluated("windows"), "WINDOWS"),
        Values(_unevaluated("windows - evaluated"), "MISSING"),
        Values(_unevaluated(f"indexOf([{_DETAILS}], reason)"), "REASON"),
    ),
    "gt", (MOST_MISSING,), 86_400,
    "{{ $labels.job }}: drumline cannot judge this job: " + _MEANING,
    "Run {{ $labels.run }}: of its last {{ $values.WINDOWS.Value }} windows of steps {{ $values.MISSING.Value }} have "
    "no verdict. A straggler in them is not found.",
    causes.text("REASON", [entry.check for entry in _REASONS]),
    causes.text("REASON", [entry.act for entry in _REASONS]),
    f"Fires where more than {MOST_MISSING:.0%} of at least {LEAST_WINDOWS} windows of steps have no verdict. "
    f"Those count that ended in the last {RECENT_S // 60} minutes, or in {LEAST_WINDOWS} times their length. "
    f"Fires too where ranks of one job have called NCCL for {NO_STEPS_S} s and no step is known. "
    "A checkpoint or a rank that joins leaves one of ten windows without verdicts. "
    "Windows that wait for a past count only while none has verdicts. "
    "A stream worker that is down is left to `Results lag behind`.",
    ("drumline-job", "coverage"), {"job": "job", "run": "run"}, for_s=300, escalate=DRUMLINE,
    guide=causes.text("REASON", [entry.page for entry in _REASONS], _REASONS[0].page),
)  # fmt: skip

#: Active runs and their ranks that never reported; a policy may record fewer than half on purpose.
_LACKING = f"SELECT job, run, {UNREPORTED} FROM processes WHERE (job, run) IN ({ACTIVE_RUNS}) GROUP BY job, run"
_COUNT = "if(unreported_ranks * 2 > world, 0, unreported_ranks)"
NEVER_REPORTED = Rule(
    "drumline-job-unreported", "Ranks never reported", "warning",
    (
        of_active(f"SELECT job, run, toFloat64({_COUNT}) AS value FROM ({_LACKING})"),
        Values(f"SELECT job, run, toFloat64(world) AS value FROM ({_LACKING})", "WORLD"),
        of_active(
            "SELECT job, run, arrayStringConcat(arraySlice(unreported, 1, 10), ', ') AS names, "
            f"toFloat64(unreported_ranks) AS value FROM ({_LACKING})", "RANKS",
        ),
    ),
    "gt", (0.0,), 86_400,
    "{{ $labels.job }}: {{ $values.A.Value }} of {{ $values.WORLD.Value }} ranks have never reported",
    "Run {{ $labels.run }}: nothing ever came of ranks {{ $values.RANKS.Labels.names }} (the first ten). A straggler "
    "among them is not found, and windows of steps without them have no verdicts.",
    "`drumline explain {{ $labels.job }}` names them. Run `drumline doctor` on their hosts.",
    "Start the agent there, or run the job under drumline on all hosts.",
    "The launcher states how many ranks a job has; each reports within seconds of its start, and 300 s are longer than "
    "a large job takes to start everywhere. Jobs of which fewer than half of the ranks reported are left out: a policy "
    "may record some on purpose.",
    ("drumline-job", "coverage"), {"job": "job", "run": "run"}, for_s=300, escalate=DRUMLINE,
)  # fmt: skip
