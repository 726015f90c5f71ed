"""The job as a whole got slower: nobody is late, no link is slow, yet steps take longer than in the job's own past."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import WindowTable, step_length
from drumline.streams.stragglers.analysis.baseline import STEP, Past, same_work

#: Budget column -> what it says of a job that grew most there.
DETAILS = {"compute_ns": "compute", "copy_ns": "copy", "idle_ns": "idle", "comm_exposed_ns": "communication"}


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """`detail`: more_work, or the part of the median rank's step that grew most. `grew_ns`: per step, by part."""

    ratio: float
    detail: str
    lost_ns: float
    share: float
    grew_ns: dict[str, int] = field(default_factory=dict)


def changed_job(table: WindowTable, past: Past, config: StragglerConfig) -> ChangedJob | None:
    """Mean step without the longest (one checkpoint or pause is no change) against the median of earlier windows."""
    usual = past.usual(config)
    length = step_length(table)
    seen = np.isfinite(length)
    if not usual or len(past.jobs) < config.changed_windows_min or not seen.any():
        return None
    steps = np.array([job[STEP] for job in past.jobs])
    spread = 1.4826 * float(np.median(np.abs(steps - usual[STEP])))
    now = float(np.sort(length[seen])[: max(1, seen.sum() - 1)].mean())
    if now < config.changed_ratio * usual[STEP] or now < usual[STEP] + config.changed_spreads * spread:
        return None
    grew = {name: float(np.nanmedian(table.budget[name])) - usual[name] for name in DETAILS}
    alike = same_work(table, usual, config.imbalance_ratio)
    detail = DETAILS[max(grew, key=lambda name: grew[name])] if alike else "more_work"
    grown = {name: round(value) for name, value in grew.items()}
    lost = (now - usual[STEP]) * float(seen.sum())
    return ChangedJob(round(now / usual[STEP], 3), detail, lost, 1.0 - usual[STEP] / now, grown)
