"""NCCL kernels in launch order, and the matches that are known before they are matched with calls."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.schemas.columns import Array

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class NcclKernels:
    """NCCL kernels in launch order.

    Attributes:
        operation_class: index into nccl.names.OPERATIONS, 0 = not in the kernel's name.
        correlation: CUPTI's correlation id, unwrapped; int64.
        start_ns: begin of the kernel; int64.
        known_call: for a live process, index of each kernel's call where it is a known match, else -1; None = the whole
            process is recorded.
        began: the first kernel is the first of the recording.
        counted: no loss is known, so counts are believed where distances do not contradict them.
    """

    operation_class: Array
    correlation: Array
    start_ns: Array
    known_call: Array | None = None
    began: bool = True
    counted: bool = True

    def __len__(self) -> int:
        return len(self.operation_class)

    def take(self, index: Array) -> NcclKernels:
        """Return the kernels at these positions."""
        return NcclKernels(self.operation_class[index], self.correlation[index], self.start_ns[index])


@dataclass(frozen=True)
class KnownMatches:
    """Matches of a live process's earlier segments, and recorded launches.

    Attributes:
        correlation: of matched kernels; int64.
        call_ns: when their calls began; int64.
        began, counted: see NcclKernels.
        launched: correlation of kernels whose launch was recorded, rising.
        launched_ns: when that launch was.
    """

    correlation: Array
    call_ns: Array
    began: bool = True
    counted: bool = True
    launched: Array = field(default_factory=lambda: _NONE)
    launched_ns: Array = field(default_factory=lambda: _NONE)

    def calls_of(self, kernels: NcclKernels, start_ns: Array) -> Array:
        """Return for each kernel the index of its call, -1 = no known match. `start_ns`: of all calls, rising."""
        order = np.argsort(self.correlation, kind="stable")
        pair = index_among(self.correlation[order], kernels.correlation)
        call = index_among(start_ns, self.call_ns[order])
        return np.where(pair >= 0, np.append(call, -1)[pair], -1)

    def launched_at(self, kernels: NcclKernels) -> Array:
        """Return for each kernel when the host launched it; -1 = unknown."""
        at = index_among(self.launched, kernels.correlation)
        return np.where(at >= 0, np.append(self.launched_ns, -1)[at], -1)


def index_among(among: Array, values: Array) -> Array:
    """Return the position of each value among sorted ones; -1 = absent."""
    at = np.searchsorted(among, values)
    return np.where((at < len(among)) & (np.append(among, 0)[at] == values), at, -1)
