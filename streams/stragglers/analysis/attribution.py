"""Attribution of lost time: which rank's own time its peers waited for (derivation: docs/design/stragglers.md).

Between two collectives all ranks of a communicator spend the same interval: own time + waiting, I = own + U, with U the
time in which only communication ran (`comm_exposed_ns` of gpu.step.v1). So U_w - U_r is how much longer r worked than
w. U holds the waiting in *all* communicators: a rank that is late in one because it waited in another has a U as large
as its peers', and no lost time is attributed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drumline.streams.stragglers.analysis.window_data import (
    CommunicatorWindow,
    Floats,
    Ints,
    WindowData,
    comparable,
    comparables,
    peer_median,
    peer_medians,
    step_length,
)

HiddenWaiting = Callable[[Sequence[CommunicatorWindow]], list[Floats]]
#: Steps of members that are compared together: some MB with all that is computed of them.
PASS_VALUES = 1 << 16


@dataclass(frozen=True)
class Attribution:
    """Holds the lost time of each rank of a window; all arrays are [R].

    Attributes:
        lost_ns: over the rank's compared steps.
        share: lost_ns / time_ns.
        steps: number of compared steps.
        via: index of the group with the largest loss in `WindowData.communicators`, -1 = compared in none.
        time_ns: length of the compared steps.
        behind_ns: [R, S], how much later than its median peer of the lockstep group, or, without peers, of its pipeline
            by their baselines; NaN = not compared.
    """

    lost_ns: Floats
    share: Floats
    steps: Ints
    via: Ints
    time_ns: Floats
    behind_ns: Floats


def attribute_lost_time(data: WindowData, quorum: float, hidden_waiting: HiddenWaiting | None = None) -> Attribution:
    """Return the lost time of every rank: the largest over its communicators.

    In one communicator the lost time is how much longer the rank worked than its median peer there, limited to

    - how much longer it worked than the median of its lockstep group,
    - how long the peers really waited in this communicator; in a pipeline, in all their communicators,
    - the length of the steps; for want of peers, their growth.

    `hidden_waiting`: groups -> [m] of each, waiting that U misses; ns over the window (overlap.py).
    """
    length = step_length(data)
    count = len(data.ranks)
    lockstep_u, lockstep_hidden = np.full(data.budget["comm_exposed_ns"].shape, np.inf), np.zeros(count)
    behind = np.full(lockstep_u.shape, np.nan)
    for group in data.lockstep_groups:
        exposed = comparable(data, group, "comm_exposed_ns", quorum)
        lockstep_u[group.members] = peers = peer_median(group, exposed)
        behind[group.members] = peers - exposed
    for group, hidden in zip(data.lockstep_groups, _hidden(data.lockstep_groups, hidden_waiting), strict=True):
        lockstep_hidden[group.members] = hidden
    lost, shown, via = np.zeros(count), np.zeros(count), np.full(count, -1)
    compared = np.zeros((count, len(data.steps)), bool)
    groups = data.communicators
    losses = _losses(data, (lockstep_u, lockstep_hidden), _hidden(groups, hidden_waiting), quorum)
    for index, (group, (met, late, loss, local)) in enumerate(zip(groups, losses, strict=True)):
        members = group.members
        better = met.any(1) & ((via[members] < 0) | (local > shown[members]))
        if group.baseline is not None:
            better &= via[members] < 0  # the baseline counts only where there are no peers
            met &= better[:, None]
            behind[members] = np.where(met, late, behind[members])
        shown[members[better]], via[members[better]] = local[better], index
        lost[members] = np.maximum(lost[members], np.where(met.any(1), loss, 0.0))
        compared[members] |= met
    # All compared steps, not only those of this communicator: a communicator that meets once a window weighs once.
    time = np.where(compared, length, 0.0).sum(1)
    share = np.divide(lost, time, out=np.zeros(count), where=time > 0)
    return Attribution(lost, share, compared.sum(1), via, time, behind)


def _hidden(groups: Sequence[CommunicatorWindow], hidden_waiting: HiddenWaiting | None) -> list[Floats]:
    return [np.zeros(len(group.members)) for group in groups] if hidden_waiting is None else hidden_waiting(groups)


def _losses(
    data: WindowData, lockstep: tuple[Floats, Floats], hidden_of: Sequence[Floats], quorum: float
) -> Iterator[tuple[NDArray[np.bool_], Floats, Floats, Floats]]:
    """Yield of each communicator [m, S] in which steps a member was compared, and how late; twice [m] ns that it lost.

    First by what its peers waited wherever they may wait for it, then by what they waited here.

    `lockstep`: [R, S] U of the median of a rank's lockstep group, and [R] the waiting that it misses. `hidden_of`: the
    same of each communicator.
    """
    length, (lockstep_u, lockstep_hidden) = step_length(data), lockstep
    waited_ns = waited_anywhere(data) if data.pipelines else None
    for first, groups in _passes(data.communicators):
        values_of = comparables(data, groups, ("comm_exposed_ns", "gpu_duration_ns"), quorum)
        exposed_of = values_of["comm_exposed_ns"]
        peers_of = peer_medians(groups, exposed_of)
        met_of = [
            np.isfinite(exposed) & np.isfinite(peers) for exposed, peers in zip(exposed_of, peers_of, strict=True)
        ]
        # Without known waiting: the growth of the peers' waiting, which `exposed` is for a group with a baseline.
        waiting_of = [
            np.where(met, group.wait_ns if group.baseline is None else exposed, np.nan)
            for group, exposed, met in zip(groups, exposed_of, met_of, strict=True)
        ]
        waited_of = anywhere_of = peer_medians(groups, waiting_of)
        if waited_ns is not None:
            waiting_of = [
                np.where(met, waited_ns[group.members], np.nan) if group.baseline is None else waiting
                for group, waiting, met in zip(groups, waiting_of, met_of, strict=True)
            ]
            anywhere_of = peer_medians(groups, waiting_of)
        mismatch_of = _interval_mismatch(groups, met_of, values_of["gpu_duration_ns"])
        for index, group in enumerate(groups):
            members, exposed, peers, met = group.members, exposed_of[index], peers_of[index], met_of[index]
            late = np.where(met, peers - exposed, 0.0)
            longer = late.sum(1) + hidden_of[first + index]
            if group.baseline is None:
                # A peer with less work waits for a member that is as long as all others: the member is not at fault.
                than_lockstep = np.where(met, lockstep_u[members] - exposed, 0.0).sum(1) + lockstep_hidden[members]
                longer = np.minimum(longer, than_lockstep) - mismatch_of[index]
            limit = length if group.baseline is None else values_of["gpu_duration_ns"][index]
            longer = np.minimum(longer, np.where(met, limit, 0.0).sum(1))
            anywhere, local = (np.where(met, waited[index], 0.0).sum(1) for waited in (anywhere_of, waited_of))
            yield met, late, np.maximum(np.minimum(longer, anywhere), 0.0), np.maximum(np.minimum(longer, local), 0.0)


def waited_anywhere(data: WindowData) -> Floats:
    """Return [R, S] ns that each rank waited in all its communicators.

    In a pipeline it counts: whom a rank waits for in a receive is not known. Its peers in other pipelines may wait for
    a rank that waited for it, in another communicator.
    """
    out = np.zeros(data.budget["comm_exposed_ns"].shape)
    for group in data.communicators:
        if group.baseline is None:
            out[group.members] += np.nan_to_num(group.wait_ns)
    return out


def _passes(groups: Sequence[CommunicatorWindow]) -> Iterator[tuple[int, Sequence[CommunicatorWindow]]]:
    """Yield groups in their order that fill some MB at most, with the index of the first."""
    first, size = 0, 0
    for index, group in enumerate(groups):
        if size and size + group.wait_ns.size > PASS_VALUES:
            yield first, groups[first:index]
            first, size = index, 0
        size += group.wait_ns.size
    yield first, groups[first:]


def _interval_mismatch(
    groups: Sequence[CommunicatorWindow], met_of: Sequence[NDArray[np.bool_]], interval_of: Sequence[Floats]
) -> list[Floats]:
    """Return [m] ns for each group, by which the length of a member's steps differs from its peers'.

    It is 0 but for jitter, unless ranks number steps differently. Then a step that is long for all ranks lies in the
    windows of some ranks only, and the difference does not show who worked longer.
    """
    peers_of = peer_medians(groups, interval_of)
    return [
        np.abs(np.where(met, interval - peers, 0.0).sum(1))
        for met, interval, peers in zip(met_of, interval_of, peers_of, strict=True)
    ]
