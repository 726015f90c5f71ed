"""Reads a recorded job for the curve: its batches in each tier that it has, with or without samples and hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from drumline.producers.replay.published import is_published, read_published
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

TOPICS = {Topic.COLLECTIVE, Topic.STEP, Topic.PROCESS, Topic.DEVICE}
#: Columns of gpu.step.v1 that hooks in the process and waits for the GPU fill.
HOOKS = ("sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns")


def tiers(folder: Path) -> list[bool]:
    """Return whether to read a recording as the light tier, for each of its tiers: published rows have one."""
    return [False] if is_published(folder) else [False, True]


def read_batches(folder: Path, light: bool) -> list[tuple[int, Batch]]:
    """Return the (time in ns, batch) of a recording. Raises BadTrace, OSError."""
    if is_published(folder):
        return list(read_published(folder))
    recorded = RecordedJob(folder, topics=TOPICS, light=light)  # without phases: verdicts must not see them
    return [(out.time_ns, out.batch) for out in recorded.batches()]


def without_samples(batches: Sequence[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of collectives and steps, as they were without samples and hooks."""
    for time_ns, batch in batches:
        if batch.topic == Topic.COLLECTIVE:
            yield time_ns, batch
        elif batch.topic == Topic.STEP:
            unknown = {name: np.full_like(batch.columns[name], -1) for name in HOOKS}
            yield time_ns, replace(batch, columns={**batch.columns, **unknown})
