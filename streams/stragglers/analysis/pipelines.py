"""Pipelines: the stage of each rank, and groups that compare a stage with its own baseline.

Ranks of different stages differ in work and in bubbles by design, so a rank is compared with ranks of its stage only.
Where those show nothing (one replica only, or a stage late as a whole), it is compared with the baseline of its stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.baseline import KEPT, Baseline
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, Floats, Ints, WindowData

Ranks = frozenset[int]


def joined(groups: Iterable[Iterable[int]]) -> list[Ranks]:
    """Return the groups, with groups that share a rank made one."""
    out: list[set[int]] = []
    for group in groups:
        new = set(group)
        for other in [old for old in out if old & new]:
            new |= other
            out.remove(other)
        out.append(new)
    return [frozenset(group) for group in out]


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
    inside = [ranks for ranks in communicators.values() if not _spans(ranks, chains, communicators)]
    return {rank: min(stage) for stage in joined(inside) for rank in stage}


def _spans(ranks: Ranks, chains: list[Ranks], communicators: Mapping[str, Ranks]) -> bool:
    """Return whether a communicator spans stages.

    Where all ranks of the job send over one communicator, its pipelines cannot be separated. Then the communicators
    that divide it completely among them are the stages.
    """
    for chain in (chain for chain in chains if len(chain & ranks) > 1):
        within = [other for other in communicators.values() if other < chain]
        if not (ranks < chain and frozenset().union(*within) == chain):
            return True
    return False


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
        columns = {name: np.array([steps[int(i)][name] for i in members]) for name in KEPT}
        growth = {
            name: _common_growth(data.budget[name][members], columns[name])
            for name in ("compute_ns", "kernels", "blocks")
        }
        columns = {name: growth.get(name, growth["compute_ns"]) * values for name, values in columns.items()}
        wait = np.where(np.isfinite(data.budget["comm_exposed_ns"][members]), 0.0, np.nan)
        worst = np.zeros(wait.shape, LATENESS_ROW)
        name = " ".join(str(rank) for rank in data.ranks[pipeline].tolist())
        out.append(CommunicatorWindow(name, len(pipeline), members, wait, wait, worst, baseline=columns))
    return out


def _common_growth(now: Floats, baseline: Floats) -> float:
    """Return the ratio that every rank reaches at least, 1.0 or more. `now`: [m, S], `baseline`: [m], per step."""
    seen = np.isfinite(now).any(1) & (baseline > 0)
    return max(1.0, float((np.nanmean(now[seen], axis=1) / baseline[seen]).min())) if seen.any() else 1.0
