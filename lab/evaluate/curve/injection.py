"""Describes faults that are injected into replayed steps: which rank, how much more of which time, from which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline.lab.evaluate.curve.job_rows import Floats

#: host: idle between operations; gpu: more compute; loader: idle at the step's begin, counted as loading; link: all
#: transfers slower. Steps that are hit cost so much more that a fault of every kind costs its size on average.
KINDS = ("host", "gpu", "every 4th step", "bursts", "loader", "link")
SIZES = (0.03, 0.05, 0.10, 0.20, 0.30, 0.50)
PERIOD, BURSTS = 4, 0.2


@dataclass(frozen=True)
class Injection:
    """Describes one fault. `size`: time that it adds to a step on average, as a share of the median healthy step."""

    kind: str
    size: float
    rank: int
    first_step: int
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Delays:
    """Holds the time that faults add, by scenario, step and rank; ns.

    Attributes:
        spread: own work, in proportion to the gaps of a step.
        opening: own work before the first operation of a step.
        compute, load: parts of them that are compute, and that the loader's hook sees; the rest is idle.
        link: [scenarios, steps] factor on transfers.
    """

    spread: Floats
    opening: Floats
    compute: Floats
    load: Floats
    link: Floats

    @property
    def work(self) -> Floats:
        """Return the own work that is added."""
        return self.spread + self.opening


def delays(
    injections: Sequence[Injection | None], steps: int, ranks: int, step_ns: float, transfer_ns: float
) -> Delays:
    """Return what each scenario adds; None injects nothing.

    `step_ns`, `transfer_ns`: of a median healthy step, all its transfers together.
    """
    shape = (len(injections), steps, ranks)
    out = Delays(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), np.ones(shape[:2]))
    for scenario, fault in enumerate(injections):
        if fault is None:
            continue
        extra = np.zeros(steps)
        extra[fault.first_step :] = fault.size * step_ns
        if fault.kind == "every 4th step":
            extra[np.arange(steps) % PERIOD != 0] = 0.0
            extra *= PERIOD
        elif fault.kind == "bursts":
            dice = np.random.default_rng(fault.seed)
            extra *= (dice.random(steps) < BURSTS) / BURSTS
        if fault.kind == "link":
            out.link[scenario] += extra / max(transfer_ns, 1.0)
        elif fault.kind == "loader":
            out.opening[scenario, :, fault.rank] = out.load[scenario, :, fault.rank] = extra
        else:
            out.spread[scenario, :, fault.rank] = extra
            if fault.kind == "gpu":
                out.compute[scenario, :, fault.rank] = extra
    return out
