"""An independent measure of the cost of each rank to the job: waiting in raw NCCL durations, no code of streams.

For the k-th collective of a communicator in a step, a rank's wait is its duration minus the shortest. A rank's waiting
in a step is what its own kernels and copies did not cover of all its waits, or the longest covered wait, whichever is
more: a rank that computes on while it waits keeps its lead to the next collective, so that the covered waits of a step
are one lead seen again and again. Send and receive have no shortest rank: their uncovered time is taken whole, and
ranks are compared only with those that they meet in a lockstep collective, as these have the same pattern of sends.

    cost of r = sum over steps of (median over the others w of waiting_w - waiting_r) / sum of step times

in the communicator where it is largest, but no more than over all ranks that r meets directly or through others: where
one rank of a pair has less work it waits for the whole job, and its partner costs nothing.
"""

from __future__ import annotations

import numpy as np

LOCKSTEP = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")


def costs(derived, first, last):
    """Return the share of the job's time that each rank cost in steps first..last; negative if it waited.

    `derived`: of all ranks, from drumline.producers.derive.rows.
    """
    steps = sorted(set.intersection(*(set(d.steps["step"].tolist()) for d in derived)) & set(range(first, last + 1)))
    joined, whole = _collectives(derived, steps)
    ranks = len(derived)
    uncovered, covered = np.zeros((ranks, len(steps))), np.zeros((ranks, len(steps)))
    meets = [set() for _ in range(ranks)]
    for (communicator, step, _), rows in joined.items():
        if len(rows) < 2:
            continue
        shortest = min(duration for duration, _ in rows.values())
        for rank, (duration, busy) in rows.items():
            wait = duration - shortest
            uncovered[rank, steps.index(step)] += max(0, wait - busy)
            covered[rank, steps.index(step)] = max(covered[rank, steps.index(step)], min(wait, busy))
            meets[rank].add((communicator, frozenset(rows)))
    for rank, step, duration, busy in whole:
        uncovered[rank, steps.index(step)] += max(0, duration - busy)
    waiting = np.maximum(uncovered, covered).sum(1)
    time = np.mean([_time(d.steps, steps) for d in derived])
    out = np.zeros(ranks)
    for rank in range(ranks):
        groups = [sorted(members - {rank}) for _, members in meets[rank]]
        longest = max((np.median(waiting[peers]) - waiting[rank] for peers in groups), default=0.0)
        lockstep = sorted(_reached(rank, meets) - {rank})
        out[rank] = min(longest, np.median(waiting[lockstep]) - waiting[rank]) / time if lockstep else 0.0
    return out


def _reached(rank, meets):
    """Return the ranks that a rank meets directly or through other ranks, and itself."""
    out, new = set(), {rank}
    while new:
        out |= new
        new = set().union(*(members for member in new for _, members in meets[member])) - out
    return out


def step_ms(derived, first, last):
    """Return the mean time of a step in ms, GPU intervals."""
    steps = [s for s in derived[0].steps["step"].tolist() if first <= s <= last]
    return float(np.mean([_time(d.steps, steps) for d in derived])) / len(steps) / 1e6


def _time(table, steps):
    return float(table["gpu_duration_ns"][np.isin(table["step"], steps)].sum())


def _collectives(derived, steps):
    """Return the lockstep collectives: (communicator, step, ordinal) -> rank -> (duration, covered); and the rest."""
    joined, whole = {}, []
    for rank, d in enumerate(derived):
        rows, operations = d.collectives, d.collectives.dictionaries["operations"]
        keep = np.flatnonzero(np.isin(rows["step"], steps))
        names = ("communicator", "step", "ordinal", "operation", "duration_ns", "covered_ns")
        for c, step, k, operation, duration, covered in zip(*(rows[n][keep].tolist() for n in names), strict=True):
            if operations[operation] in LOCKSTEP:
                joined.setdefault((c, step, k), {})[rank] = (duration, covered)
            else:
                whole.append((rank, step, duration, covered))
    return joined, whole
