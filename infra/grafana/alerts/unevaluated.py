"""The alert rule on jobs whose windows of steps cannot be evaluated (infra/clickhouse/coverage.py)."""

from __future__ import annotations

from drumline.infra.clickhouse.coverage import LEAST_WINDOWS, MOST_MISSING, NO_STEPS_S, RECENT_S, recent
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
