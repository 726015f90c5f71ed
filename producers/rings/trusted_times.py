"""Contradictions in the times of the GPU that NCCL reports.

NCCL finds an operation's times by a count of works that its host and the GPU keep apart (src/transport/profiler.cc).
Where the two counts differ, it reports the times of an older or a later operation. The plugin leaves out the channels
that are known to differ (plugin.c); what is seen here has another reason, such as an unknown version of NCCL. Pure.
"""

from __future__ import annotations

import numpy as np

from drumline.schemas.columns import Array

#: How far times may contradict a call, as the offset of the GPU's clock is known to some 10 us, and each other; ns.
SLACK_NS, OVERLAP_NS = 100_000, 2_000


def untrusted(communicator: Array, called: Array, start: Array, stop: Array, known: Array) -> Array:
    """Return which operations have times that cannot be theirs: bool.

    Those begin before their call, or while another one of their communicator runs: its operations run one after the
    other. Of two that overlap nobody knows which one is wrong, so both are. Times are ns of the host's clock.
    """
    wrong = known & (start < called - SLACK_NS)
    at = np.flatnonzero(known & ~wrong)
    at = at[np.lexsort((start[at], communicator[at]))]
    before, after = at[:-1], at[1:]
    overlap = (communicator[before] == communicator[after]) & (start[after] < stop[before] - OVERLAP_NS)
    wrong[before[overlap]] = wrong[after[overlap]] = True
    return np.asarray(wrong, bool)
