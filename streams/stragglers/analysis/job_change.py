"""Detection of a slower job: no rank is late and no link is slow, yet steps take longer than in the baseline."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.baseline import STEP, Baseline, same_work
from drumline.streams.stragglers.analysis.window_data import WindowData, step_length

#: Budget column -> detail of a job that grew most there.
DETAILS = {"compute_ns": "compute", "copy_ns": "copy", "idle_ns": "idle", "comm_exposed_ns": "communication"}


@dataclass(frozen=True, slots=True)
class JobRegression:
    """Holds how much longer the steps of a job became.

    Attributes:
        ratio: mean step over the baseline's.
        detail: more_work, or the part of the median rank's step that grew most.
        lost_ns: over the window.
        share: of the window's time.
        grew_ns: part of the step -> growth per step.
    """

    ratio: float
    detail: str
    lost_ns: float
    share: float
    grew_ns: dict[str, int] = field(default_factory=dict)


def find_job_regression(data: WindowData, baseline: Baseline, config: StragglerConfig) -> JobRegression | None:
    """Return how much longer the mean step is than the baseline's, or None if it is within `config`'s thresholds.

    The longest step is left out: one checkpoint is no change. So a window of one step is as long as that before.
    """
    baseline_step = baseline.job_step(config)
    length = step_length(data)
    seen = np.isfinite(length)
    if not baseline_step or len(baseline.jobs) < config.changed_windows_min or not seen.any():
        return None
    before = baseline_step[STEP]
    steps = np.array([job[STEP] for job in baseline.jobs])
    spread = 1.4826 * float(np.median(np.abs(steps - before)))
    now = float(np.sort(length[seen])[: max(1, seen.sum() - 1)].mean())
    now = min(now, float(steps[-1])) if seen.sum() == 1 else now
    if now < config.changed_ratio * before or now < before + config.changed_spreads * spread:
        return None
    grew = {name: float(np.nanmedian(data.budget[name])) - baseline_step[name] for name in DETAILS}
    alike = same_work(data, baseline_step, config.imbalance_ratio)
    detail = DETAILS[max(grew, key=lambda name: grew[name])] if alike else "more_work"
    grew_ns = {name: round(value) for name, value in grew.items()}
    lost = (now - before) * float(seen.sum())
    return JobRegression(round(now / before, 3), detail, lost, 1.0 - before / now, grew_ns)
