"""TraceML: the rank whose synchronisation phase is shortest came late.

traceopt-ai/traceml, docs/developer_guide/rank-straggler-policy.md. Visible phase of a rank = backward (DDP and default)
or forward + backward (FSDP), on the GPU's clock. Culprit = smallest visible phase, victim = upper median rank. Score =
(visible victim - visible culprit) / (input wait + step time of the victim); warning from 0.10. A component (input wait,
host to device copies, with DDP also forward) whose excess covers 80% of the gap names the cause.

TraceML times phases with CUDA events. The recordings have the kernels: backward starts with the step's first kernel
named so and ends with the step's last collective (which the optimizer waits for); forward starts with the first kernel,
NCCL's too, after the optimizer's, which are those named so before the step's first collective. Input wait needs a
wrapped data loader; what stands in for it is the GPU's idle time before forward, which is generous. Means over steps.
"""

from __future__ import annotations

import re

import numpy as np

from drumline.lab.evaluate.window_input import Bools, Floats, Job, is_nccl
from drumline.producers.activity.activity import end_ns
from drumline.producers.derive.steps.budget import gpu_busy
from drumline.schemas.columns import Array

WARN, COVERAGE = 0.10, 0.80
BACKWARD = re.compile(r"backward|bprop|bwd", re.IGNORECASE)
OPTIMIZER = re.compile(r"multi_tensor_apply|adam|sgd|lamb|optim", re.IGNORECASE)
_CAUSES = {"input": "host_stall", "h2d": "slow_copy", "compute": "slow_compute"}


def verdicts(job: Job) -> tuple[Bools, Floats, list[list[str]]]:
    """Return (named, score, cause), all [R, W]. Windows without a backward kernel on two ranks name no rank."""
    ranks, windows = job.shape
    parts = [phases(job, rank) for rank in range(ranks)]
    mean = {
        name: np.array([p[name].reshape(-1, job.window_steps).mean(1) for p in parts]).reshape(job.shape)
        for name in parts[0]
    }
    sharded = is_sharded(job)
    visible = mean["forward"] + mean["backward"] if sharded else mean["backward"]
    named, score = np.zeros(job.shape, bool), np.zeros(job.shape)
    causes = [["unknown"] * windows for _ in range(ranks)]
    for w in range(windows):
        eligible = np.flatnonzero(np.isfinite(visible[:, w]))
        if len(eligible) < 2:
            continue
        by_size = eligible[np.argsort(visible[eligible, w], kind="stable")]
        culprit, victim = by_size[0], by_size[len(by_size) // 2]
        gap = visible[victim, w] - visible[culprit, w]
        score[culprit, w] = gap / (mean["input"][victim, w] + mean["step"][victim, w])
        named[culprit, w] = score[culprit, w] >= WARN
        among = ("input", "h2d") if sharded else ("input", "h2d", "compute")
        excess = {n: (mean[n][culprit, w] - mean[n][victim, w]) / gap for n in among} if gap > 0 else {"input": 0.0}
        best = max(excess, key=lambda name: excess[name])
        if excess[best] >= COVERAGE:
            causes[culprit][w] = _CAUSES[best]
    return named, score, causes


def is_sharded(job: Job) -> bool:
    """Return whether the job uses FSDP: gradients are reduce-scattered. TraceML reads this from the environment."""
    operations = list(job.derived[0].collectives.dictionaries["operations"])
    seen = np.concatenate([d.collectives["operation"][d.collectives["step"] >= 0] for d in job.derived])
    count = np.bincount(seen, minlength=len(operations))
    return bool(count[operations.index("ReduceScatter")] > count[operations.index("AllReduce")])


def phases(job: Job, rank: int) -> dict[str, Floats]:
    """Return phase -> ns in each step of the windows; NaN where kernel names do not identify the phases."""
    derived, steps = job.derived[rank], job.steps(rank)
    start, end = steps["gpu_start_ns"], steps["gpu_start_ns"] + steps["gpu_duration_ns"]
    communication = is_nccl(derived.kernels)
    gpu = gpu_busy(derived.kernels, communication, derived.copies)
    work = derived.kernels.take(~communication)
    at = job.step_at(rank, work["start_ns"])
    work, at = work.take(at >= 0), at[at >= 0]
    backward = np.full(steps.rows, np.iinfo(np.int64).max)
    matched = _named(work.dictionaries["names"], BACKWARD)[work["name"]]
    np.minimum.at(backward, at[matched], work["start_ns"][matched])
    known = backward < end
    backward = np.where(known, backward, end)
    met = np.sort(derived.kernels["start_ns"][communication])
    first = met[np.minimum(np.searchsorted(met, start), len(met) - 1)] if len(met) else end
    before = np.minimum(backward, np.where(first >= start, first, end))
    optimized = start.copy()
    matched = _named(work.dictionaries["names"], OPTIMIZER)[work["name"]] & (work["start_ns"] < before[at])
    np.maximum.at(optimized, at[matched], end_ns(work)[matched])
    starts = np.sort(derived.kernels["start_ns"])
    following = np.searchsorted(starts, optimized)
    forward = np.minimum(starts[np.minimum(following, len(starts) - 1)], backward) if len(starts) else backward
    waited = (forward - start) - gpu.any.covered(start, forward)
    values = {
        "input": np.maximum(waited, 0),
        "h2d": gpu.copy.covered(start, end),
        "compute": backward - forward,
        "forward": backward - forward,
        "backward": end - backward,
        "step": end - forward,
    }
    return {name: np.where(known, v.astype(np.float64), np.nan) for name, v in values.items()}


def _named(strings: object, pattern: re.Pattern[str]) -> Array:
    names = [str(string) for string in strings] if isinstance(strings, list | tuple) else []
    return np.array([pattern.search(name) is not None for name in names] or [False], bool)
