"""Longest collective is slowest: the rank that spends most time in NCCL's kernels is called the straggler.

No paper proposes it; a dashboard of NCCL time per rank suggests it (mean collective time per rank, as exported by NCCL
Inspector's Prometheus mode), and what NVRx leaves NCCL's kernels out for ("MED=256us on a fast rank, 3369us on a slow
one", a TODO in reporting.py). A rank that waits has the long kernel, so this names victims; it serves as a contrast.
It names the rank with the most NCCL time, where it has more than the least by 10% of the window (TraceML's threshold).
"""

from __future__ import annotations

import numpy as np

from drumline.lab.evaluate.window_input import Bools, Floats, Job

THRESHOLD = 0.10


def verdicts(job: Job) -> tuple[Bools, Floats]:
    """Return (named, excess as a share of the window), both [R, W]."""
    ranks, windows = job.shape
    spent = np.zeros(job.shape)
    for rank in range(ranks):
        rows = job.derived[rank].collectives
        window = job.window_of(rows["step"])
        inside = window >= 0
        spent[rank] = np.bincount(window[inside], rows["duration_ns"][inside], windows)
    share = (spent - spent.min(0)) / job.lengths()
    longest = np.arange(ranks)[:, None] == spent.argmax(0)[None, :]
    return longest & (share >= THRESHOLD), share
