"""Recorded data, prepared outside of the measured time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic


def kernel_batches(folder: Path, rows: int, limit: int = 64) -> list[Batch]:
    """Return up to `limit` recorded gpu.kernel.v1 batches, cut to exactly `rows` rows.

    Raises: ValueError where the recording has no batch that large.
    """
    batches: list[Batch] = []
    for outgoing in RecordedJob(folder, topics=[Topic.KERNEL]).batches():
        batch = outgoing.batch
        if batch.rows >= rows:
            envelope = {**batch.envelope, "rows": rows, "sent_ns": batch.envelope["base_time_ns"]}
            columns = {name: np.ascontiguousarray(values[:rows]) for name, values in batch.columns.items()}
            batches.append(Batch(batch.topic, envelope, columns))
            if len(batches) == limit:
                break
    if not batches:
        raise ValueError(f"{folder}: no batch of {rows} kernels")
    return batches
