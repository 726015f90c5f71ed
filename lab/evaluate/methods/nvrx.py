"""NVRx: GPU scores from the median duration of each kernel.

NVIDIA/nvidia-resiliency-ext, straggler detection (src/nvidia_resiliency_ext/straggler/reporting.py, statistics of
cupti_src/). Per report interval and rank, the median duration m of every kernel key (name, grid, block), without NCCL's
kernels. Score of a kernel = reference / m, of a GPU = mean of its kernels' scores weighted by the time spent in them.
Relative: the reference is the smallest m of all ranks; kernels that some rank did not run are left out. Individual: the
smallest m that this rank has ever had. A GPU that scores below 0.75 is a straggler.
Here the report interval is the window, and all kernels of its GPU time are profiled (NVRx samples sections).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from drumline.lab.evaluate.window_input import Bools, Floats, Job, is_nccl
from drumline.schemas.columns import Array

THRESHOLD = 0.75
_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def relative(job: Job) -> tuple[Bools, Floats]:
    """Return (named, 1 - score), both [R, W], by the fastest rank."""
    medians, weights = summaries(job)
    return _named(medians.min(0, keepdims=True), medians, weights)


def individual(job: Job) -> tuple[Bools, Floats]:
    """Return (named, 1 - score), both [R, W], by the rank's own best."""
    medians, weights = summaries(job)
    best = np.fmin.accumulate(medians, axis=1)
    return _named(best, medians, weights)


def _named(reference: Floats, medians: Floats, weights: Floats) -> tuple[Bools, Floats]:
    scores = reference / medians
    known = np.isfinite(scores)
    weight = np.where(known, weights, 0.0)
    total = weight.sum(2)
    score = np.divide((np.where(known, scores, 0.0) * weight).sum(2), total, out=np.ones(total.shape), where=total > 0)
    return score < THRESHOLD, 1.0 - score


@lru_cache(maxsize=1)
def summaries(job: Job) -> tuple[Floats, Floats]:
    """Return (median duration, time spent) per rank, window and kernel key: [R, W, K], ns; NaN and 0: not run."""
    ranks, windows = job.shape
    ids: dict[str, int] = {}
    parts: list[Array] = []
    for rank, derived in enumerate(job.derived):
        kernels = derived.kernels.take(~is_nccl(derived.kernels))
        names = np.array([ids.setdefault(name, len(ids)) for name in kernels.dictionaries["names"]] or [0], np.int64)
        step = job.step_at(rank, kernels["start_ns"])
        numbers = job.steps(rank)["step"]
        window = job.window_of(numbers[step]) if len(numbers) else step
        columns = [np.full(kernels.rows, rank), np.where(step >= 0, window, -1), kernels["duration_ns"]]
        columns += [names[kernels["name"]], *(kernels[c] for c in _SHAPE)]
        parts.append(np.stack([np.asarray(c, np.int64) for c in columns]))
    rank_of, window_of, duration, *key_columns = np.concatenate(parts, axis=1)
    _, key = np.unique(_mixed(key_columns), return_inverse=True)
    kinds = int(key.max(initial=-1)) + 1
    inside = window_of >= 0
    group = ((rank_of * windows + window_of) * kinds + key)[inside]
    return _grouped(group, duration[inside], ranks * windows * kinds, (ranks, windows, kinds))


def _mixed(columns: list[Array]) -> Array:
    """Return a 64-bit hash of each row."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _grouped(group: Array, duration: Array, size: int, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    medians, spent = np.full(size, np.nan), np.zeros(size)
    order = np.lexsort((duration, group))
    group, duration = group[order], duration[order].astype(np.float64)
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]]) if len(group) else np.zeros(0, np.int64)
    count = np.diff(np.r_[first, len(group)])
    if len(first):
        medians[group[first]] = (duration[first + (count - 1) // 2] + duration[first + count // 2]) / 2
        spent[group[first]] = np.add.reduceat(duration, first)
    return medians.reshape(shape), spent.reshape(shape)
