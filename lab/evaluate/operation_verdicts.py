"""Verdicts on a job of which only a table of its operations is known: without phases, so nothing is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drumline.lab.evaluate.scoring import INSUFFICIENT, SEVERITY_NAMES, WHOLE_JOB
from drumline.lab.evaluate.verdict_rows import verdict_rows
from drumline.producers.replay.operation_table.job import OperationJob
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.offline import ANY_LENGTH_NS, fitting_window, verdicts
from drumline.views.verdict.verdict_rows import VerdictRow


@dataclass(frozen=True)
class OperationVerdicts:
    """Holds the verdicts on a table. `rows`: in order of windows, the job's first, then ranks."""

    job: OperationJob
    window_steps: int
    rows: Sequence[VerdictRow]

    @property
    def findings(self) -> list[VerdictRow]:
        """Return the rows that name a rank or the job."""
        return [row for row in self.rows if row.severity > OK]

    @property
    def not_evaluated(self) -> list[VerdictRow]:
        """Return the rows of the job in windows that could not be evaluated."""
        return [row for row in self.rows if row.severity == INSUFFICIENT and row.rank == WHOLE_JOB]

    def unrecorded_shares(self) -> dict[int, float]:
        """Return rank -> part of its time in which it waited for what was not recorded, where that is suspect."""
        return self.job.unrecorded_shares(StragglerConfig().suspect)

    def described(self, rank: int) -> str:
        """Return the rank, its recorded number where that differs, and its place in the layout."""
        return "job" if rank == WHOLE_JOB else self.job.described(rank)

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts as `drumline evaluate --json` prints them."""
        return {
            "window_steps": self.window_steps,
            "recorded_ranks": list(self.job.layout.recorded_ranks),
            "recorded_steps": list(self.job.recorded_steps),
            "places": [place._asdict() for place in self.job.layout.places],
            "unrecorded_shares": {str(rank): round(share, 6) for rank, share in self.unrecorded_shares().items()},
            "windows": [
                {
                    "first_step": first,
                    "last_step": last,
                    "rows": [_row_json(row) for row in self.rows if row.first_step == first],
                }
                for first, last in sorted({(row.first_step, row.last_step) for row in self.rows})
            ],
        }


def evaluate_operations(path: Path, config: StragglerConfig, window_steps: int | None = None) -> OperationVerdicts:
    """Read a table and return the verdicts of the straggler code on it. Raises BadTrace.

    `window_steps`: None = those of `config`, fewer where the table has few steps.
    """
    job = OperationJob(path)
    steps = window_steps or fitting_window(len(job.recorded_steps), config.window_steps)
    rows = verdict_rows(verdicts(job.batches(), replace(config, window_steps=steps, window_ns=ANY_LENGTH_NS)))
    return OperationVerdicts(job, steps, sorted(rows, key=lambda row: (row.first_step, row.rank)))


def _row_json(row: VerdictRow) -> dict[str, Any]:
    severity = "insufficient_data" if row.severity == INSUFFICIENT else SEVERITY_NAMES.get(row.severity, "ok")
    verdict = {"severity": severity, "cause": row.cause, "detail": row.detail, "lost_share": round(row.share, 6)}
    return {"rank": row.rank, **verdict}
