"""Ranks that go at one pace: those that meet in some communicator, or meet others that do. Pure.

What a rank lost the job, and where its time went, is measured against all of them too, not only against those it meets
itself: of two that meet one cannot tell who is at fault, and a rank with less work waits there for a partner that is as
fast as everybody.
"""

from __future__ import annotations

import numpy as np

from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.attribution import GUESSED, Ints, Meeting, WindowTable
from drumline.streams.stragglers.analysis.pipelines_roles import joined


def paces(table: WindowTable) -> list[Meeting]:
    """A meeting for each set of ranks of one role that go at one pace; of size 0: however few are there, they are
    compared. `wait_ns` is 0 where a rank was compared in any communicator, NaN elsewhere; `lag_ns` is its largest."""
    real = [meeting for meeting in table.meetings if meeting.usual is None]
    shape = table.budget["comm_exposed_ns"].shape
    wait, lag = np.full(shape, np.nan), np.full(shape, np.nan)
    for meeting in real:
        who = meeting.members
        wait[who] = np.where(np.isfinite(meeting.wait_ns), 0.0, wait[who])
        lag[who] = np.fmax(lag[who], meeting.lag_ns)
    name = GUESSED if any(meeting.guessed for meeting in real) else ""
    out = []
    for pace in joined(group.tolist() for meeting in real for group in _by_role(meeting)):
        who = np.array(sorted(pace), np.int64)
        roles = None if all(meeting.roles is None for meeting in real) else np.zeros(len(who), np.int64)
        worst = np.zeros((len(who), shape[1]), LATENESS_ROW)
        out.append(Meeting(name, 0, who, wait[who], wait[who], worst, lag[who], roles))
    return out


def _by_role(meeting: Meeting) -> list[Ints]:
    if meeting.roles is None:
        return [meeting.members]
    return [meeting.members[meeting.roles == role] for role in np.unique(meeting.roles)]
