"""Lateness that hides behind compute: who arrived last, where nobody's waiting shows as exposed time.

While ranks wait in a collective that overlaps their compute, their kernels share the GPU with the spinning NCCL kernel
and take longer: by the last collective of the step they are hardly ahead any more, and what they lost counts as work.
The lag at the first collectives still shows it. It names victims too, so waiting in other communicators is taken off;
and it says nothing of what the job lost, so it counts up to what the steps grew against the job's own past.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drumline.streams.blame import Blame, WindowTable, step_length
from drumline.streams.past import STEP

#: A rank's step of another length than the job's, by more than this part of its lag, is another step: ranks that do not
#: number them alike arrive late by construction. A lag that is real repeats from step to step and changes no length.
OTHER_STEP = 0.25
OTHER_STEP_NS = 1_000_000


def with_lag(table: WindowTable, found: Blame, usual: Mapping[str, float], expected: int) -> Blame:
    """`found`, raised for ranks whose lag shows more: min(sum of lag - waiting elsewhere, growth of the steps).

    `usual`: of the job when nobody was late, mean step (STEP) and median exposed communication. `expected`: ranks of
    the job. Waiting for a rank that is not heard cannot be told from being late, so only steps count in which all ranks
    met somebody, and waiting elsewhere is at least what exposed communication grew. Steps in which any of a rank's
    communicators could not be compared count for nothing, nor do ranks of a pipeline (what they wait for in a receive
    is not known) or of a communicator that is only guessed.
    """
    length = step_length(table)
    seen = np.isfinite(length)
    growth = float((length[seen] - usual[STEP]).sum())
    if growth <= 0.0 or len(table.ranks) < expected:
        return found
    shape = (len(table.ranks), len(table.steps))
    met = np.zeros(shape, bool)
    for meeting in table.meetings:
        met[meeting.members] |= np.isfinite(meeting.wait_ns)
    waiting, known = np.zeros(shape), np.zeros(shape, bool) | (seen & met.all(0))
    grown = np.maximum(np.nan_to_num(table.budget["comm_exposed_ns"]) - usual["comm_exposed_ns"], 0.0)
    for meeting in table.meetings:
        if not meeting.lags_compare:
            known[meeting.members] = False
            continue
        waiting[meeting.members] += np.nan_to_num(meeting.wait_ns)
        there = np.zeros(shape, bool)
        there[meeting.members] = np.isfinite(meeting.wait_ns)
        known[meeting.listed] &= there[meeting.listed] | ~meeting.held
    lost, via = found.lost_ns.copy(), found.via.copy()
    for index, meeting in enumerate(table.meetings):
        who = meeting.members
        if not meeting.lags_compare:
            continue
        other = np.abs(table.budget["gpu_duration_ns"][who] - length)
        same = other <= np.maximum(OTHER_STEP_NS, OTHER_STEP * np.nan_to_num(meeting.lag_ns))
        here = known[who] & np.isfinite(meeting.lag_ns) & same
        elsewhere = np.maximum(waiting[who] - meeting.wait_ns, grown[who])
        beyond = np.where(here, meeting.lag_ns - elsewhere, 0.0).sum(1)
        # Of the growth only the part of the steps that were looked at.
        most = growth * here.sum(1) / seen.sum()
        more = np.clip(np.minimum(beyond, most), 0.0, None)
        better = (via[who] >= 0) & (more > lost[who])
        lost[who[better]], via[who[better]] = more[better], index
    share = np.divide(lost, found.time_ns, out=np.zeros(len(lost)), where=found.time_ns > 0)
    return Blame(lost, np.minimum(share, 1.0), found.steps, via, found.time_ns)
