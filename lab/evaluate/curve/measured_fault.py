"""Holds what was measured of one fault, recorded or injected."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.lab.evaluate.curve.injection import Injection
from drumline.lab.evaluate.curve.recall import FaultPhase, Recall
from drumline.lab.evaluate.curve.true_cost import TrueCost
from drumline.lab.evaluate.curve.window_loss import QUIET_SHARE

#: What the healthy windows beside a fault are; unknown where ranks never meet, or none is beside it.
QUIET, NOISY, UNKNOWN = STATES = ("quiet", "noisy", "loss unknown")


@dataclass(frozen=True)
class MeasuredFault:
    """Holds a fault, its true cost and what was found.

    Attributes:
        cost: None where no healthy steps lie beside it.
        loss: median share that the healthy windows beside it lose; None where there is none.
        pairs: (true, stated) lost share, of the phase, or of each window of an injected fault.
        injection: None where it was recorded.
    """

    fault: FaultPhase
    cost: TrueCost | None
    loss: float | None
    recall: Recall
    pairs: tuple[tuple[float, float], ...]
    injection: Injection | None = None

    @property
    def beside(self) -> str:
        """Return whether the healthy windows beside it are quiet."""
        return UNKNOWN if self.loss is None else QUIET if self.loss < QUIET_SHARE else NOISY
