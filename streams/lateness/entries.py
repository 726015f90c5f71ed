"""Ends of all-to-alls whose recorded end is that of sending, from when each rank entered them.

NCCL's profiler tells when the GPU began an all-to-all, and when it had sent (as_operations of producers/rings).
No rank leaves one before the last has entered. When that was is known on each rank's own clock: all ranks leave a
reduction or gather together, so their ends in the same step show by how much the clocks differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: COLLECTIVE_ROW rows [ranks, collectives].
Table = np.ndarray[Any, Any]


def with_ends(table: Table, is_sent: NDArray[np.bool_], is_left_together: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Set the durations of the collectives `is_sent` in place, and return which collectives have one: [collectives].

    duration(r) = max(recorded(r), last entry - entry(r) + least recorded), on clocks that the medians of the ends of
    those `is_left_together` align. Without one of these in the step, those `is_sent` have no duration.
    """
    if not is_sent.any():
        return np.ones(len(is_sent), bool)
    if not is_left_together.any():
        return ~is_sent
    together, sent = table[:, is_left_together], table[:, is_sent]
    ends = together["start_ns"] + together["duration_ns"]
    ahead = np.rint(np.median(ends - ends[:1], axis=1)).astype(np.int64)  # of each rank's clock
    entered = sent["start_ns"] - ahead[:, None]
    waited = entered.max(0) - entered + sent["duration_ns"].min(0)
    durations = table["duration_ns"]
    durations[:, is_sent] = np.maximum(sent["duration_ns"], waited)
    return np.ones(len(is_sent), bool)
