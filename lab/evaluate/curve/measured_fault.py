"""Holds what was measured of one fault, recorded or injected."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.lab.evaluate.curve.injection import Injection
from drumline.lab.evaluate.curve.recall import FaultPhase, Recall
from drumline.lab.evaluate.curve.true_cost import TrueCost
from drumline.lab.evaluate.curve.window_loss import QUIET_SHARE


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
    def is_quiet(self) -> bool:
        """Return whether the healthy windows beside it are quiet."""
        return self.loss is not None and self.loss < QUIET_SHARE
