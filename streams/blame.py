"""Whose own time the others waited for: lost time of each rank in a window (derivation: docs/design/stragglers.md).

Between two meetings every rank spends the same time: own time + waiting, I = own + U, with U the time in which only
communication ran (gpu.step.v1 comm_exposed_ns). So U_w - U_r is how much longer r worked than w. U holds the waiting in
*all* communicators: a rank that is late here because it waited there has as large a U as everybody, and gets no blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Meeting:
    """One communicator in a window. `members` [m]: indices into WindowTable.ranks. Others [m, S], NaN = not comparable;
    `floor_ns`, `bytes`, `collectives` [S]."""

    communicator: str
    size: int
    members: Ints
    wait_ns: Floats
    lateness_ns: Floats
    floor_ns: Floats
    bytes: Floats
    collectives: Floats
    worst: NDArray[np.void]


@dataclass(frozen=True)
class WindowTable:
    """One window of one run. `ranks` [R] sorted, `steps` [S], `budget`: gpu.step.v1 column -> [R, S], NaN = no row."""

    ranks: Ints
    steps: Ints
    budget: dict[str, Floats]
    meetings: list[Meeting] = field(default_factory=list)


@dataclass(frozen=True)
class Blame:
    """Per rank [R]: `lost_ns` over its compared steps, `share` of those steps' time, `steps` compared, `via` the
    meeting with the largest loss (-1 = compared nowhere)."""

    lost_ns: Floats
    share: Floats
    steps: Ints
    via: Ints


def peers_median(values: Floats) -> Floats:
    """[m, S] -> [m, S]: per column the median of the *other* rows, NaN where there is no other. Skips NaN.

    Leaving oneself out makes half of the ranks being late together (one of two hosts) still stand out.
    """
    m, s = values.shape
    valid = np.isfinite(values)
    n = valid.sum(0) - 1  # others of a valid entry
    order = np.argsort(np.where(valid, values, np.inf), axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, 0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(m)[:, None], (m, s)), 0)
    out = np.zeros((m, s))
    for middle in ((n - 1) // 2, n // 2):
        index = middle + (place <= middle)
        out += 0.5 * np.take_along_axis(ordered, np.clip(index, 0, m - 1), 0)
    out[~valid | (n < 1)[None, :]] = np.nan
    return out


def blame(table: WindowTable, quorum: float) -> Blame:
    """Lost time of every rank: over each communicator it is in, what it worked longer than its median peer there, but
    no more than those peers really waited there, nor than the steps took; the communicator with the largest counts."""
    length = step_length(table)
    count = len(table.ranks)
    lost, via = np.zeros(count), np.full(count, -1)
    compared = np.zeros((count, len(table.steps)), bool)
    for index, meeting in enumerate(table.meetings):
        mine = comparable(table, meeting, "comm_exposed_ns", quorum)
        met = np.isfinite(mine)
        longer = np.where(met, peers_median(mine) - mine, 0.0).sum(1)
        waited = np.where(met, peers_median(np.where(met, meeting.wait_ns, np.nan)), 0.0).sum(1)
        here = np.clip(np.minimum(longer, waited), 0.0, np.where(met, length, 0.0).sum(1))
        who = meeting.members
        better = met.any(1) & ((via[who] < 0) | (here > lost[who]))
        lost[who[better]], via[who[better]] = here[better], index
        compared[who] |= met
    # All its compared steps, not only those of the communicator: one that meets once a window weighs once.
    time = np.where(compared, length, 0.0).sum(1)
    share = np.divide(lost, time, out=np.zeros(count), where=time > 0)
    return Blame(lost, share, compared.sum(1), via)


def comparable(table: WindowTable, meeting: Meeting, column: str, quorum: float) -> Floats:
    """[m, S]: a budget column of a meeting's members, NaN where the rank, or too much of the meeting, is missing."""
    values = np.where(np.isfinite(meeting.wait_ns), table.budget[column][meeting.members], np.nan)
    values[:, np.isfinite(values).sum(0) < max(2.0, quorum * meeting.size)] = np.nan
    return values


def step_length(table: WindowTable) -> Floats:
    """[S]: median over the ranks of the budget interval; ns, NaN for a step nobody reported."""
    interval = table.budget["gpu_duration_ns"]
    out = np.full(interval.shape[1], np.nan)
    seen = np.isfinite(interval).any(0)
    out[seen] = np.nanmedian(interval[:, seen], axis=0)
    return out
