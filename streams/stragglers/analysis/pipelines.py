"""Pipelines: the stage of each rank, and groups that compare a stage with its own baseline.

Ranks of different stages differ in work and in bubbles by design, so a rank is compared with ranks of its stage only.
Where those show nothing (one replica only, or a stage late as a whole), it is compared with the baseline of its stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from drumline.streams.core.chance import beyond
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.baseline import KEPT, STEP, Baseline
from drumline.streams.stragglers.analysis.window_data import (
    WORST_ROW,
    CommunicatorWindow,
    Floats,
    Ints,
    WindowData,
    step_length,
)

Ranks = frozenset[int]


def joined(groups: Iterable[Iterable[int]]) -> list[Ranks]:
    """Return the groups, with groups that share a rank made one, in the order of the last group of each."""
    sets: dict[int, set[int]] = {}  # by the number of the group that began it
    set_of: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, group in enumerate(groups):
        ranks = set(group)
        touched = {set_of[rank] for rank in ranks if rank in set_of}
        largest = max(touched, key=lambda at: len(sets[at]), default=number)  # the others move: n log n in all
        for at in touched - {largest}:
            ranks |= sets.pop(at)
        sets.setdefault(largest, set()).update(ranks)
        set_of.update(dict.fromkeys(ranks, largest))
        last[largest] = number
    return [frozenset(sets[at]) for at in sorted(sets, key=last.__getitem__)]


def pipeline_stages(pipelines: Iterable[Ranks], communicators: Mapping[str, Ranks]) -> dict[int, int] | None:
    """Return rank -> its stage (the lowest rank that is known to do the same), None if there is no pipeline.

    `pipelines`: ranks of each communicator in which one rank sends what another receives. `communicators`: ranks of
    each communicator in which all ranks meet.

    Ranks that send to each other, directly or along a pipeline, are of different stages. So a communicator with two of
    them spans stages; one without is inside a stage, and its ranks do the same.
    """
    chains = joined(pipelines)
    if not chains:
        return None
    chain_of = {rank: chain for chain in chains for rank in chain}
    inside = [ranks for ranks in communicators.values() if not _spans(ranks, chain_of, communicators)]
    return {rank: lowest for stage in joined(inside) for lowest in [min(stage)] for rank in stage}


def _spans(ranks: Ranks, chain_of: Mapping[int, Ranks], communicators: Mapping[str, Ranks]) -> bool:
    """Return whether a communicator spans stages.

    Where all ranks of the job send over one communicator, its pipelines cannot be separated. Then the communicators
    that divide it completely among them are the stages.
    """
    shared = Counter(id(chain_of[rank]) for rank in ranks if rank in chain_of)
    for chain in {id(chain): chain for rank in ranks if (chain := chain_of.get(rank))}.values():
        if shared[id(chain)] > 1 and not (ranks < chain and _divided(chain, communicators)):
            return True
    return False


def _divided(chain: Ranks, communicators: Mapping[str, Ranks]) -> bool:
    within = [other for other in communicators.values() if other < chain]
    return frozenset().union(*within) == chain


def ranks_without_peers(data: WindowData, attribution: Attribution) -> Ints:
    """Return the indices of ranks in a pipeline that no rank of their own stage was compared with."""
    members = np.unique(np.concatenate([np.zeros(0, np.int64), *data.pipelines]))
    without_peers: Ints = members[attribution.steps[members] == 0]
    return without_peers


def stage_members(data: WindowData) -> dict[int, Ints]:
    """Return lowest rank of each stage -> indices of its ranks, of all ranks in a pipeline."""
    stage_of = {int(i): int(data.ranks[i]) for pipeline in data.pipelines for i in pipeline}
    for group in data.communicators:
        roles = [] if group.roles is None else group.roles.tolist()
        for index, role in zip(group.members.tolist(), roles, strict=False):
            stage_of |= {index: role} if role >= 0 and index in stage_of else {}
    out: dict[int, list[int]] = {}
    for index, rank in sorted(stage_of.items()):
        out.setdefault(rank, []).append(index)
    return {rank: np.array(members, np.int64) for rank, members in sorted(out.items())}


def pipeline_windows(data: WindowData, baseline: Baseline, config: StragglerConfig) -> list[CommunicatorWindow]:
    """Return a group per pipeline, of the ranks whose stage has a baseline.

    All ranks of a pipeline run in lockstep. So a rank that works x longer than its baseline makes the others wait x
    longer than their baselines, and the stages' own differences cancel. Growth of the work on all ranks (longer
    sequences) is no fault of the largest stage: all baselines are raised by it.
    """
    out = []
    stage_of = {int(i): rank for rank, stage in stage_members(data).items() for i in stage}
    for pipeline in data.pipelines:
        steps = {int(i): baseline.stage_step(stage_of[int(i)], config) for i in pipeline}
        members = np.array([i for i in steps if steps[i]], np.int64)
        if len(members) < 2:
            continue
        columns = {name: np.array([steps[int(i)][name] for i in members]) for name in (*KEPT, STEP)}
        growth = {
            name: _common_growth(data.budget[name][members], columns[name])
            for name in ("compute_ns", "kernels", "blocks")
        }
        columns = {name: growth.get(name, growth["compute_ns"]) * values for name, values in columns.items()}
        columns["gpu_duration_ns"] = columns.pop(STEP)
        wait = np.where(np.isfinite(data.budget["comm_exposed_ns"][members]), 0.0, np.nan)
        worst = np.zeros(len(members), WORST_ROW)
        name = " ".join(str(rank) for rank in data.ranks[pipeline].tolist())
        out.append(CommunicatorWindow(name, len(pipeline), members, wait, wait, worst, baseline=columns))
    return out


def _common_growth(now: Floats, baseline: Floats) -> float:
    """Return the ratio that every rank reaches at least, 1.0 or more. `now`: [m, S], `baseline`: [m], per step."""
    seen = np.isfinite(now).any(1) & (baseline > 0)
    return max(1.0, float((np.nanmean(now[seen], axis=1) / baseline[seen]).min())) if seen.any() else 1.0


def stage_work(data: WindowData) -> dict[str, Any]:
    """Return how long each stage works in a step of a window, as JSON: `step` and, by its lowest rank, `work`; ns.

    A stage's is that of its median rank: all but exposed communication. Empty without a pipeline, or where a stage has
    no rows.
    """
    length, work = step_length(data), dict[str, float]()
    busy = data.budget["gpu_duration_ns"] - data.budget["comm_exposed_ns"]
    for rank, stage in stage_members(data).items():
        seen = busy[stage][np.isfinite(busy[stage]).any(1)]
        if not len(seen):
            return {}
        work[str(rank)] = round(float(np.median(np.nanmean(seen, axis=1))))
    return {"step": round(float(np.nanmean(length))), "work": work} if len(work) > 1 else {}


def unequal_stages(
    windows: Sequence[Mapping[str, Any]], stated: Mapping[str, Any], config: StragglerConfig
) -> dict[str, Any]:
    """Return which stage works longest and what that costs, as evidence of the job's row; {} = as stated before.

    A step lasts as long as the longest stage works, and a part p of what the others do: the first batch passes through
    them alone. So p follows from the step, and equal stages would save (1 - p) * (longest - mean). `windows`: of
    `stage_work`, oldest first. `stated`: what this function returned last.
    """
    known = [window for window in windows if window and window["work"].keys() == windows[-1].get("work", {}).keys()]
    if len(known) < config.baseline_windows_min:
        return {}
    work = np.array([list(window["work"].values()) for window in known], float)
    typical, step = np.median(work, axis=0), float(np.median([window["step"] for window in known]))
    ranks, least = [int(rank) for rank in known[-1]["work"]], config.suspect * step
    longest = int(typical.argmax())
    if stated.get("rank") in ranks and typical[longest] - typical[ranks.index(stated["rank"])] < least:
        longest = ranks.index(stated["rank"])  # of two stages that work as long, one is as good as the other
    most, mean = float(typical.max()), float(typical.mean())
    part = min(1.0, max(0.0, step - most) / max(float(typical.sum()) - most, 1.0))
    bubble = (1.0 - part) * (most - mean) / step
    before = stated["bubble"] if stated.get("rank") == ranks[longest] else 0.0
    median_of_others = np.median(np.delete(work, longest, axis=1), axis=1)
    if abs(bubble - before) < config.suspect or _may_be_chance(work[:, longest] - median_of_others, step, config):
        return {}
    longer = typical[longest] / float(np.median(np.delete(typical, longest))) - 1.0
    numbers = {"longer": round(float(longer), 4), "bubble": round(bubble, 4)}
    return {"rank": ranks[longest], "longest": longest, "of": len(ranks), **numbers}


def _may_be_chance(longer: Floats, step: float, config: StragglerConfig) -> bool:
    """Return whether a stage may work longer by chance. `longer`: by how much in each of some windows; ns a step."""
    varies = max(float(np.std(longer, ddof=1)), config.least_jitter * step)
    times = float(longer.mean()) / varies * (len(longer) / config.alike_windows) ** 0.5
    return times <= 0.0 or beyond(times, len(longer) - 1) >= config.chance
