"""Whose own time the others waited for: lost time of each rank in a window (derivation: docs/design/stragglers.md).

Between two meetings every rank spends the same time: own time + waiting, I = own + U, with U the time in which only
communication ran (gpu.step.v1 comm_exposed_ns). So U_w - U_r is how much longer r worked than w. U holds the waiting in
*all* communicators: a rank that is late here because it waited there has as large a U as everybody, and gets no blame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.medians import peers_median

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: First character of a communicator that is only guessed (gpu.collective.v1).
GUESSED = "~"


@dataclass(frozen=True)
class Meeting:
    """One communicator in a window. `members` [m]: indices into WindowTable.ranks.

    [m, S], NaN = not comparable: `wait_ns`, `lateness_ns`, `lag_ns`, `worst`. `kinds`: (operation, bytes) -> [2, S]:
    how many collectives of that kind, and the sum of their floors in ns. `roles` [m]: members are compared with members
    of the same role (pipeline stage); None = all are alike. `usual`: a pipeline without peers: budget column -> [m]
    what each member's step usually has. Members are compared by what they have more than that; waiting is not known.
    """

    communicator: str
    size: int
    members: Ints
    wait_ns: Floats
    lateness_ns: Floats
    worst: NDArray[np.void]
    lag_ns: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    roles: Ints | None = None
    usual: dict[str, Floats] | None = None
    kinds: dict[tuple[str, int], Floats] = field(default_factory=dict)

    @property
    def guessed(self) -> bool:
        """Its members may not really meet: without NCCL's payloads producers go by stream and operation, and say so."""
        return self.communicator.startswith(GUESSED)


@dataclass(frozen=True)
class WindowTable:
    """One window of one run. `ranks` [R] sorted, `steps` [S], `budget`: gpu.step.v1 column -> [R, S], NaN = no row.
    `chains`: indices of the ranks of each pipeline. `paces`: all that a rank is compared with in the end (pace.py)."""

    ranks: Ints
    steps: Ints
    budget: dict[str, Floats]
    meetings: list[Meeting] = field(default_factory=list)
    chains: list[Ints] = field(default_factory=list)
    paces: list[Meeting] = field(default_factory=list)


@dataclass(frozen=True)
class Blame:
    """Per rank [R]: `lost_ns` over its compared steps, `share` of those steps' time, `steps` compared, `via` the
    meeting with the largest loss (-1 = compared nowhere), `time_ns` the length of the compared steps."""

    lost_ns: Floats
    share: Floats
    steps: Ints
    via: Ints
    time_ns: Floats


def blame(table: WindowTable, quorum: float, hidden: Callable[[Meeting], Floats] | None = None) -> Blame:
    """Lost time of every rank: over each communicator it is in, what it worked longer than its median peer there, but
    no more than it worked longer than the median of all that go at its pace, nor than those peers really waited there,
    nor than the steps took; the communicator with the largest counts. `hidden`: of a meeting -> [m], what U misses
    (inflation.py); ns over the window."""
    length = step_length(table)
    count = len(table.ranks)
    everybody, unseen = np.full(table.budget["comm_exposed_ns"].shape, np.inf), np.zeros(count)
    for pace in table.paces:
        everybody[pace.members] = norm(pace, comparable(table, pace, "comm_exposed_ns", quorum))
        unseen[pace.members] = 0.0 if hidden is None else hidden(pace)
    lost, via = np.zeros(count), np.full(count, -1)
    compared = np.zeros((count, len(table.steps)), bool)
    for index, meeting in enumerate(table.meetings):
        who, mine = meeting.members, comparable(table, meeting, "comm_exposed_ns", quorum)
        peers = norm(meeting, mine)
        met = np.isfinite(mine) & np.isfinite(peers)
        longer = np.where(met, peers - mine, 0.0).sum(1) + (0.0 if hidden is None else hidden(meeting))
        if meeting.usual is None:
            # A peer with less work waits for whoever is as long as everybody: that is no fault.
            than_all = np.where(met, everybody[who] - mine, 0.0).sum(1) + unseen[who]
            longer = np.minimum(longer, than_all) - _astray(table, meeting, met, quorum)
        # Without known waiting: what the others' waiting grew, which is what `peers` then is.
        waiting = meeting.wait_ns if meeting.usual is None else mine
        waited = np.where(met, norm(meeting, np.where(met, waiting, np.nan)), 0.0).sum(1)
        here = np.clip(np.minimum(longer, waited), 0.0, np.where(met, length, 0.0).sum(1))
        better = met.any(1) & ((via[who] < 0) | (here > lost[who]))
        if meeting.usual is not None:
            better &= via[who] < 0  # the past is asked only where there are no peers
            met &= better[:, None]
        lost[who[better]], via[who[better]] = here[better], index
        compared[who] |= met
    # All its compared steps, not only those of the communicator: one that meets once a window weighs once.
    time = np.where(compared, length, 0.0).sum(1)
    share = np.divide(lost, time, out=np.zeros(count), where=time > 0)
    return Blame(lost, share, compared.sum(1), via, time)


def _astray(table: WindowTable, meeting: Meeting, met: NDArray[np.bool_], quorum: float) -> Floats:
    """[m] ns by which a member's steps of the window took another time than its peers'. It is 0 but for jitter, unless
    ranks do not number steps alike: a step that is long for all lies in the windows of some only, and what differs by
    it says nothing of who worked longer."""
    interval = comparable(table, meeting, "gpu_duration_ns", quorum)
    off: Floats = np.abs(np.where(met, interval - norm(meeting, interval), 0.0).sum(1))
    return off


def norm(meeting: Meeting, values: Floats) -> Floats:
    """[m, S] -> [m, S]: for each member the median of the others of its role, NaN where there is none."""
    if meeting.roles is None:
        return peers_median(values)
    out = np.full(values.shape, np.nan)
    for role in np.unique(meeting.roles):
        out[meeting.roles == role] = peers_median(values[meeting.roles == role])
    return out


def comparable(table: WindowTable, meeting: Meeting, column: str, quorum: float) -> Floats:
    """[m, S]: a budget column of a meeting's members, NaN where the rank, or too much of the meeting, is missing.
    Where there are no peers: what it has more than usual."""
    values = np.where(np.isfinite(meeting.wait_ns), table.budget[column][meeting.members], np.nan)
    if meeting.usual is not None:
        values -= meeting.usual.get(column, np.full(len(meeting.members), np.nan))[:, None]
    values[:, np.isfinite(values).sum(0) < max(2.0, quorum * meeting.size)] = np.nan
    return values


def step_length(table: WindowTable) -> Floats:
    """[S]: median over the ranks of the budget interval; ns, NaN for a step nobody reported."""
    interval = table.budget["gpu_duration_ns"]
    out = np.full(interval.shape[1], np.nan)
    seen = np.isfinite(interval).any(0)
    out[seen] = np.nanmedian(interval[:, seen], axis=0)
    return out
