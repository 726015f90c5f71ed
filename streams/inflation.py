"""What waiting hides where there is no past to compare with: the peers' own work takes longer while they wait.

A kernel that shares the GPU with a spinning NCCL kernel is slowed down. So who waits for a late rank in collectives
that overlap compute shows more compute, not more waiting: U (blame.py) misses as much as the late rank's compute is
shorter for the same work. No more than it had less overlap with communication, or it would be a faster GPU.
"""

from __future__ import annotations

import numpy as np

from drumline.streams.blame import Floats, Meeting, WindowTable, comparable, norm


def inflation(table: WindowTable, meeting: Meeting, quorum: float, equal_ratio: float) -> Floats:
    """[m] ns over the window: how much longer the median peer's compute took, for ranks whose kernels and blocks are
    the same within `equal_ratio`; 0 for others, and where ranks are not alike by design."""
    if meeting.usual is not None or meeting.roles is not None:
        return np.zeros(len(meeting.members))
    own, peers = {}, {}
    for name in ("compute_ns", "compute_overlapped_ns", "kernels", "blocks"):
        values = comparable(table, meeting, name, quorum)
        others = norm(meeting, values)
        both = np.isfinite(values) & np.isfinite(others)
        own[name], peers[name] = (np.where(both, x, 0.0).sum(1) for x in (values, others))
    same = np.ones(len(meeting.members), bool)
    for name in ("kernels", "blocks"):
        same &= np.maximum(own[name], peers[name]) <= equal_ratio * np.minimum(own[name], peers[name])
    less = np.maximum(peers["compute_overlapped_ns"] - own["compute_overlapped_ns"], 0.0)
    return np.where(same, np.clip(peers["compute_ns"] - own["compute_ns"], 0.0, less), 0.0)
