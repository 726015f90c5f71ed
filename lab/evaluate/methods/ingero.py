"""ingero: a process whose kernel launches drop against its own past.

ingero-io/ingero, internal/straggler/detector.go. Each second, launches/s of a process against a moving average of its
own (alpha 0.2, at least 3 samples, frozen while it is a straggler): a drop of more than 30% together with 5 or more
involuntary context switches in that second.

The recordings have neither launch calls nor context switches. Kernel starts on the GPU, without those of CUDA graphs,
stand in for launches (the same number, later by the queue), and the launch leg alone decides, so both recall and false
alarms are upper bounds. A window is named where named seconds cover half of it. ingero's fleet score (median -
2 * 1.4826 * MAD over peers) needs five ranks and the kernel's scheduler counters; it cannot be run here.
"""

from __future__ import annotations

import numpy as np

from drumline.lab.evaluate.window_input import Bools, Floats, Job
from drumline.schemas.columns import Array

ALPHA, DROP, SAMPLES, INTERVAL_NS = 0.2, 0.30, 3, 1_000_000_000


def verdicts(job: Job) -> tuple[Bools, Floats]:
    """Return (named, largest drop of a named second), both [R, W]."""
    named, depth = np.zeros(job.shape, bool), np.zeros(job.shape)
    for rank, derived in enumerate(job.derived):
        launched = np.sort(derived.kernels["start_ns"][derived.kernels["graph"] == 0])
        if not len(launched):
            continue
        first = int(launched[0])
        drop = drops(np.bincount((launched - first) // INTERVAL_NS))
        steps = job.steps(rank)
        low = steps["gpu_start_ns"][:: job.window_steps]
        high = (steps["gpu_start_ns"] + steps["gpu_duration_ns"])[job.window_steps - 1 :: job.window_steps]
        edges = first + np.arange(len(drop) + 1) * INTERVAL_NS
        overlap = np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1])
        overlap = np.where(drop > 0, np.maximum(overlap, 0), 0)
        named[rank] = 2 * overlap.sum(1) >= high - low
        depth[rank] = np.where(overlap > 0, drop, 0.0).max(1, initial=0.0)
    return named, depth


def drops(launches: Array) -> Floats:
    """Return how far each second's launches are below the process's moving average, where by more than 30%; else 0."""
    out = np.zeros(len(launches))
    average = 0.0
    for i, rate in enumerate(launches.astype(np.float64).tolist()):
        if i == 0:
            average = rate
            continue
        if i >= SAMPLES - 1 and average > 0 and rate < average * (1 - DROP):
            out[i] = 1 - rate / average
            continue  # a straggling second does not become the norm
        average = ALPHA * rate + (1 - ALPHA) * average
    return out
