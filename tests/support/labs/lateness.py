"""Collectives of simulated ranks through the lateness stage."""

from __future__ import annotations

import numpy as np

from drumline.streams.lateness.collective_join import match_step
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW


def rows(durations, *, step=0, start=1000, operation=1, lockstep=1, ordinals=None):
    out = np.zeros(len(durations), COLLECTIVE_ROW)
    out["step"], out["operation"], out["lockstep"] = step, operation, lockstep
    out["ordinal"] = range(len(durations)) if ordinals is None else ordinals
    out["start_ns"] = start + 100 * out["ordinal"].astype(np.int64)
    out["duration_ns"], out["bytes"] = durations, 8
    return out


def matched(*given):
    return match_step(*given, 0.5)[0]
