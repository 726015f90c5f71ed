"""Verdicts on a job of which only a table of its operations is known: without phases, so nothing is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from drumline.lab.evaluate.scoring import INSUFFICIENT, SEVERITY_NAMES, WHOLE_JOB, VerdictRow
from drumline.lab.evaluate.verdict_rows import verdict_rows
from drumline.producers.replay.operation_table.job import OperationJob
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.offline import verdicts

#: Windows that a table has at least where none are asked for, if its steps suffice.
WINDOWS = 8
#: Windows of a table have the steps that it needs for so many, however long those take.
ANY_LENGTH_NS = 1 << 62


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
        budget = [process.steps["gpu_duration_ns"].sum() for process in self.job.processes]
        shares = self.job.unrecorded_ns.sum(1) / np.maximum(1, budget)
        return {rank: share for rank, share in enumerate(shares.tolist()) if share >= StragglerConfig().suspect}

    def described(self, rank: int) -> str:
        """Return the rank, its recorded number where that differs, and its place in the layout."""
        if rank == WHOLE_JOB:
            return "job"
        place, recorded = self.job.layout.places[rank], self.job.layout.recorded_ranks[rank]
        number = f"{rank}" if rank == recorded else f"{rank} (recorded as {recorded})"
        return f"rank {number}, stage {place.stage}, replica {place.replica}"

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

    `window_steps`: None = those of `config`, fewer where the table has less than WINDOWS such windows.
    """
    job = OperationJob(path)
    steps = window_steps or max(2, min(config.window_steps, len(job.recorded_steps) // WINDOWS))
    rows = verdict_rows(verdicts(job.batches(), replace(config, window_steps=steps, window_ns=ANY_LENGTH_NS)))
    return OperationVerdicts(job, steps, sorted(rows, key=lambda row: (row.first_step, row.rank)))


def _row_json(row: VerdictRow) -> dict[str, Any]:
    severity = "insufficient_data" if row.severity == INSUFFICIENT else SEVERITY_NAMES.get(row.severity, "ok")
    verdict = {"severity": severity, "cause": row.cause, "detail": row.detail, "lost_share": round(row.share, 6)}
    return {"rank": row.rank, **verdict}
