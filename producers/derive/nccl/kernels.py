"""NCCL kernels in the order of their launches, and what is known of them before they are paired with calls."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.schemas.columns import Array

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Launches:
    """NCCL kernels in launch order. `klass`: operation codes, 0 = says nothing; `correlation`, `start_ns`: int64.
    `told`: of a live process, the index of each one's call where that was told before, else -1; None = all that the
    process did is here. `began`: the first one is the first of the recording. `counted`: see Told."""

    klass: Array
    correlation: Array
    start_ns: Array
    told: Array | None = None
    began: bool = True
    counted: bool = True

    def __len__(self) -> int:
        return len(self.klass)

    def take(self, index: Array) -> Launches:
        """The kernels at these positions."""
        return Launches(self.klass[index], self.correlation[index], self.start_ns[index])


@dataclass(frozen=True)
class Told:
    """What earlier stretches of a live process paired: `correlation` of kernels, and when their calls began, int64.
    `began`: see Launches. `counted`: no loss is known, so counts are believed where distances tell nothing else.
    `launched`: correlation of kernels whose launch was recorded, rising, and `launched_ns`: when that was."""

    correlation: Array
    call_ns: Array
    began: bool = True
    counted: bool = True
    launched: Array = field(default_factory=lambda: _NONE)
    launched_ns: Array = field(default_factory=lambda: _NONE)

    def calls_of(self, launches: Launches, start_ns: Array) -> Array:
        """For each kernel the index of its call, -1 = not told. `start_ns`: of all calls, rising."""
        order = np.argsort(self.correlation, kind="stable")
        pair = index_among(self.correlation[order], launches.correlation)
        call = index_among(start_ns, self.call_ns[order])
        return np.where(pair >= 0, np.append(call, -1)[pair], -1)

    def launched_at(self, launches: Launches) -> Array:
        """For each kernel when the host launched it; -1 = not known."""
        at = index_among(self.launched, launches.correlation)
        return np.where(at >= 0, np.append(self.launched_ns, -1)[at], -1)


def index_among(among: Array, values: Array) -> Array:
    """Where each value stands among sorted ones; -1 = nowhere."""
    at = np.searchsorted(among, values)
    return np.where((at < len(among)) & (np.append(among, 0)[at] == values), at, -1)
