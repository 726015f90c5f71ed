"""Draws the steps of a job anew from its healthy ones: whole steps of all ranks, in blocks of neighbouring steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.lab.evaluate.curve.timings import StepTimings

#: Steps of a block: within it, what one step has to do with the next stays.
BLOCK = 40


def resample(runs: Sequence[Sequence[StepTimings]], steps: int, seed: int, block: int = BLOCK) -> list[StepTimings]:
    """Return so many steps: a moving block bootstrap of the runs. Ranks are never drawn apart from each other.

    A block lies within one run; every position of a block is as likely as any, of runs shorter than it the whole.
    """
    dice = np.random.default_rng(seed)
    starts = [(run, at) for run in runs for at in range(max(1, len(run) - block + 1))]
    out: list[StepTimings] = []
    while len(out) < steps and starts:
        run, at = starts[int(dice.integers(len(starts)))]
        out.extend(run[at : at + block])
    return out[:steps]
