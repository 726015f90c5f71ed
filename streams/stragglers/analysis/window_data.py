"""The arrays of one window of steps, and the comparisons that all of the analysis makes on them.

Shapes: R ranks, S steps, m members of a group. Times are ns; NaN = no data, or not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.medians import peers_median

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: The collective in which a rank was latest; fields as in gpu.lateness.v1.
WORST_ROW = np.dtype(
    [("step", "<i8"), ("worst_ordinal", "<i4"), ("worst_operation", "u1")]
    + [(name, "<i8") for name in ("worst_longest_ns", "worst_own_ns")]
)
#: First character of the name of a communicator that was derived without NCCL's payloads (gpu.collective.v1).
GUESSED = "~"


@dataclass(frozen=True)
class CommunicatorWindow:
    """Holds what one group of ranks did in one window: a communicator, a lockstep group, or a pipeline.

    Attributes:
        name: of the communicator.
        size: ranks of the communicator, also those without data in this window.
        members: [m] indices into `WindowData.ranks`.
        wait_ns, lateness_ns, lag_ns: [m, S], see gpu.lateness.v1.
        worst: [m] WORST_ROW rows, of all collectives of the window that in which the member was latest.
        roles: [m] pipeline stage of each member, which is compared with members of the same stage only; None = all are
            alike.
        baseline: set for a pipeline without peers only: budget column -> [m], each member's baseline of a step. Members
            are compared by how far they exceed it; their waiting is not known.
        kinds: (operation, bytes) -> [2, S]: number of collectives of that kind, or of transfers between two ranks
            ("Send"), and the sum of their floors in ns.
        hidden_wait_ns: [m, S], see gpu.lateness.v1.
        hidden: [3, S] of light steps: how much of the changes in waits the gaps took up, the changes, and the spread
            of what they took up (gpu.lateness.v1); ns.
    """

    name: str
    size: int
    members: Ints
    wait_ns: Floats
    lateness_ns: Floats
    worst: NDArray[np.void]
    lag_ns: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    roles: Ints | None = None
    baseline: dict[str, Floats] | None = None
    kinds: dict[tuple[str, int], Floats] = field(default_factory=dict)
    hidden_wait_ns: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    hidden: Floats = field(default_factory=lambda: np.zeros((3, 0)))

    @property
    def guessed(self) -> bool:
        """Return whether the group was derived from streams and operations, so that its members may not really meet."""
        return self.name.startswith(GUESSED)


@dataclass(frozen=True)
class WindowData:
    """Holds one window of one run, as `evaluate_window` reads it.

    Attributes:
        ranks: [R], sorted.
        steps: [S], sorted.
        budget: column of gpu.step.v1 -> [R, S].
        communicators: the groups whose members meet in collectives.
        pairs: two ranks each that meet in no collective, but send each other something; of them members and `kinds`.
        pipelines: indices of the ranks of each pipeline.
        lockstep_groups: the groups that a rank is compared with in the end (peers.py).
        light: most steps were measured by NCCL, without other kernels; the steps of `budget` are all of one source.
        left_out: indices of the ranks whose steps are of another source.
        unlike: [R] steps in which a rank's collectives matched those of no other rank; empty = not counted.
        number: of the window, by which its past is ordered.
    """

    ranks: Ints
    steps: Ints
    budget: dict[str, Floats]
    communicators: list[CommunicatorWindow] = field(default_factory=list)
    pairs: list[CommunicatorWindow] = field(default_factory=list)
    pipelines: list[Ints] = field(default_factory=list)
    lockstep_groups: list[CommunicatorWindow] = field(default_factory=list)
    light: bool = False
    left_out: frozenset[int] = frozenset()
    unlike: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    number: int = 0


def peer_median(group: CommunicatorWindow, values: Floats) -> Floats:
    """Return [m, S]: for each member the median of the other members of its role, NaN where there is none."""
    return peer_medians([group], [values])[0]


def peer_medians(groups: Sequence[CommunicatorWindow], values: Sequence[Floats]) -> list[Floats]:
    """Return `peer_median` of many groups. Columns are compared alone, so groups of one size are side by side."""
    out = [np.empty(column.shape) for column in values]
    alike: dict[tuple[int, int], list[tuple[int, Ints | slice]]] = {}
    for number, group in enumerate(groups):
        if group.roles is None:
            alike.setdefault(values[number].shape, []).append((number, slice(None)))
            continue
        for role in np.unique(group.roles).tolist():
            members = np.flatnonzero(group.roles == role)
            alike.setdefault((len(members), values[number].shape[1]), []).append((number, members))
    for (_, steps), blocks in alike.items():
        medians = peers_median(np.concatenate([values[number][rows] for number, rows in blocks], axis=1))
        for at, (number, rows) in enumerate(blocks):
            out[number][rows] = medians[:, at * steps : (at + 1) * steps]
    return out


def comparable(data: WindowData, group: CommunicatorWindow, column: str, quorum: float) -> Floats:
    """Return [m, S]: a budget column of the members, NaN where the member or too much of the group is missing.

    A group with a baseline yields the excess over the baseline instead.
    """
    values = np.where(np.isfinite(group.wait_ns), data.budget[column][group.members], np.nan)
    if group.baseline is not None:
        values -= group.baseline.get(column, np.full(len(group.members), np.nan))[:, None]
    values[:, np.isfinite(values).sum(0) < max(2.0, quorum * group.size)] = np.nan
    return values


def comparables(
    data: WindowData, groups: Sequence[CommunicatorWindow], columns: Sequence[str], quorum: float
) -> dict[str, list[Floats]]:
    """Return column -> `comparable` of many groups; those of one size, without a baseline, are side by side."""
    out: dict[str, list[Floats]] = {column: [np.zeros((0, 0))] * len(groups) for column in columns}
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, group in enumerate(groups):
        if group.baseline is None:
            alike.setdefault(group.wait_ns.shape, []).append(number)
        else:
            for column in columns:
                out[column][number] = comparable(data, group, column, quorum)
    for numbers in alike.values():
        is_met = np.isfinite(np.stack([groups[number].wait_ns for number in numbers]))
        members = np.stack([groups[number].members for number in numbers])
        least = np.maximum(2.0, quorum * np.array([groups[number].size for number in numbers]))
        for column in columns:
            values = np.where(is_met, data.budget[column][members], np.nan)
            too_few = np.isfinite(values).sum(1) < least[:, None]
            values[np.broadcast_to(too_few[:, None], values.shape)] = np.nan
            for number, block in zip(numbers, values, strict=True):
                out[column][number] = block
    return out


def step_length(data: WindowData) -> Floats:
    """Return [S]: median over the ranks of the budget interval; ns, NaN for a step that no rank reported."""
    interval = data.budget["gpu_duration_ns"]
    if len(interval) and np.isfinite(interval).all():
        return np.asarray(np.median(interval, axis=0))
    out = np.full(interval.shape[1], np.nan)
    seen = np.isfinite(interval).any(0)
    out[seen] = np.nanmedian(interval[:, seen], axis=0)
    return out
