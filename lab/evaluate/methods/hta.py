"""HTA: the rank whose last long collective starts latest. Needs one clock for all ranks.

facebookresearch/HolisticTraceAnalysis, hta/analyzers/straggler.py. NCCL kernels of at least 1% of the mean iteration;
of each (rank, stream, iteration, name) the last; the (stream, name) whose duration differs most between ranks; in each
iteration the ranks that start it latest are the candidates, and the two with most such iterations are returned.

Readings in its favour: modern kernel names count (upstream looks for "ncclKernel" and matches none: its issue 360). A
collective is long if it is on any rank: the latest starter has the shortest kernel, which upstream's filter, applied to
one rank at a time, removes. One rank is named, not two, and only if it is the latest in half of the window's steps.
Upstream always names a rank; `lead` = 0.01 names a rank only if its starts are later than the median of the others by
1% of an iteration, HTA's own threshold of significance. All recordings come from one host: a common clock.
"""

from __future__ import annotations

import numpy as np

from drumline.lab.evaluate.window_input import Bools, Floats, Job, is_nccl
from drumline.schemas.columns import Array

SIGNIFICANT = 0.01


def verdicts(job: Job, lead: float = 0.0) -> tuple[Bools, Floats]:
    """Return (named, mean lead in iterations), both [R, W]."""
    ranks, windows = job.shape
    n = job.window_steps
    iteration = job.lengths().mean(0) / n  # [W]
    start, length = _matched(job)  # [R, steps, kinds, ordinals]
    named, mean = np.zeros(job.shape, bool), np.zeros(job.shape)
    if ranks < 2 or not start.size:
        return named, mean
    everywhere = np.isfinite(length).all(0)
    longest = np.where(everywhere, length.max(0), 0.0)
    long = longest >= SIGNIFICANT * np.repeat(iteration, n)[:, None, None]
    last = long.shape[2] - 1 - long[:, :, ::-1].argmax(2)  # [steps, kinds]
    chosen = last[None, :, :, None]
    start, length = (np.take_along_axis(v, chosen, 3)[..., 0] for v in (start, length))
    start, length = (np.where(long.any(2), v, np.nan) for v in (start, length))
    for w in range(windows):
        part = slice(w * n, (w + 1) * n)
        spread = np.array([_spread(length[:, part, kind]) for kind in range(length.shape[2])])
        if not np.isfinite(spread).any():
            continue
        began = start[:, part, int(np.nanargmax(spread))]
        began = began[:, np.isfinite(began).all(0)]
        late = np.array([began[r] - np.median(np.delete(began, r, 0), axis=0) for r in range(ranks)]) / iteration[w]
        named[:, w] = 2 * ((began == began.max(0)) & (late >= lead)).sum(1) >= n
        mean[:, w] = np.maximum(late.mean(1), 0.0)
    return named, mean


def _matched(job: Job) -> tuple[Floats, Floats]:
    """Return (start, duration) of NCCL kernels: [R, steps, (stream, name), ordinal in the step]; NaN for none."""
    parts: list[tuple[Array, ...]] = []
    kinds: dict[tuple[int, str], int] = {}
    for rank, derived in enumerate(job.derived):
        kernels = derived.kernels.take(is_nccl(derived.kernels))
        at = job.step_at(rank, kernels["start_ns"])
        kernels, at = kernels.take(at >= 0), at[at >= 0]
        pairs, code = np.unique(np.stack([kernels["stream"], kernels["name"]]), axis=1, return_inverse=True)
        names = kernels.dictionaries["names"]
        known = [kinds.setdefault((int(stream), names[int(name)]), len(kinds)) for stream, name in pairs.T]
        kind = np.array(known, np.int64)[code.ravel()] if len(known) else np.zeros(0, np.int64)
        order = np.lexsort((kernels["start_ns"], kind, at))
        at, kind, kernels = at[order], kind[order], kernels.take(order)
        new = np.r_[True, (at[1:] != at[:-1]) | (kind[1:] != kind[:-1])][: len(at)]
        first = np.flatnonzero(new)
        ordinal = np.arange(len(at)) - (first[np.cumsum(new) - 1] if len(first) else 0)
        parts.append((at, kind, ordinal, kernels["start_ns"], kernels["duration_ns"]))
    most = max((int(f[2].max(initial=-1)) for f in parts), default=-1) + 1
    shape = (len(parts), job.shape[1] * job.window_steps, len(kinds), most)
    start, length = np.full(shape, np.nan), np.full(shape, np.nan)
    for rank, (at, kind, ordinal, began, took) in enumerate(parts):
        start[rank, at, kind, ordinal], length[rank, at, kind, ordinal] = began, took
    return start, length


def _spread(length: Floats) -> float:
    """Return the mean over steps of the standard deviation over ranks."""
    several = np.isfinite(length).all(0)
    return float(np.std(length[:, several], axis=0, ddof=1).mean()) if several.any() else float("nan")
