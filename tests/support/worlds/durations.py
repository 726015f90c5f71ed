"""Recorded durations of forward and backward passes (tests/data/operation_durations), to be drawn from."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[2] / "data" / "operation_durations" / "durations.csv"
PASSES = ("forward", "backward")


@cache
def series(table: str) -> dict[tuple[int, str], np.ndarray]:
    """Return (stage, pass) -> durations in ns, of one recorded job."""
    with PATH.open() as file:
        return {
            (int(row["stage"]), row["operation"]): np.array(row["durations_us"].split(), np.float64) * 1e3
            for row in csv.DictReader(file)
            if row["table"] == table
        }


def drawn(table: str, stage: int, name: str, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return durations of a pass of a stage, over the median of the first stage's forward pass.

    Beyond the recorded stages, passes are those of the stage before the last: the last one computes the loss too.
    """
    known = series(table)
    last = max(number for number, _ in known)
    of_stage = known[min(stage, max(0, last - 1)), name]
    return random.choice(of_stage, shape) / np.median(known[0, "forward"])


def recorded_weights(table: str) -> tuple[float, ...]:
    """Return the work of each recorded stage over that of the first."""
    known = series(table)
    work = [sum(np.median(known[stage, name]) for name in PASSES) for stage in range(len(known) // 2)]
    return tuple(float(total / work[0]) for total in work)
