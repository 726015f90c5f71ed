"""Samples of a rank's process, as an agent publishes them each second."""

from __future__ import annotations

import numpy as np
from support.straggler_simulator import MS

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.stragglers.analysis.host_cause import SAMPLED


def host_samples(rank: int, second: int, **more: int) -> tuple[int, Batch]:
    """Return (time, batch) of gpu.host.v1 with the sample of a second of a simulated job. `more`: what is not 0."""
    at = 10**18 + (second + 1) * 1000 * MS
    row = {"time_ns": at, "interval_ns": 1000 * MS, **dict.fromkeys(SAMPLED, 0), "block_io_ns": -1, **more}
    head = {"job": "job", "run": "run", "rank": rank, "rows": 1}
    return at, Batch(Topic.HOST, head, {name: np.array([value]) for name, value in row.items()})
