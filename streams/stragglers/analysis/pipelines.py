"""Pipelines where peers say nothing: one replica only, or a stage late as a whole. Ranks are compared with the past of
their stage. Pure."""

from __future__ import annotations

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.attribution import Blame, Floats, Ints, Meeting, WindowTable
from drumline.streams.stragglers.analysis.baseline import KEPT, Past


def alone(table: WindowTable, found: Blame) -> Ints:
    """Indices of ranks in a pipeline that no rank of their own stage was compared with."""
    members = np.unique(np.concatenate([np.zeros(0, np.int64), *table.chains]))
    lonely: Ints = members[found.steps[members] == 0]
    return lonely


def stages(table: WindowTable) -> dict[int, Ints]:
    """Lowest rank of each stage -> indices of its ranks, of all ranks in a pipeline."""
    first = {int(i): int(table.ranks[i]) for chain in table.chains for i in chain}
    for meeting in table.meetings:
        roles = [] if meeting.roles is None else meeting.roles.tolist()
        for index, role in zip(meeting.members.tolist(), roles, strict=False):
            first |= {index: role} if role >= 0 and index in first else {}
    out: dict[int, list[int]] = {}
    for index, rank in sorted(first.items()):
        out.setdefault(rank, []).append(index)
    return {rank: np.array(members, np.int64) for rank, members in sorted(out.items())}


def chain_meetings(table: WindowTable, past: Past, config: StragglerConfig) -> list[Meeting]:
    """A meeting per pipeline, of the ranks whose stage has a past. All ranks of a pipeline go at one pace, so a rank
    that works x longer than usual makes the others wait x longer than usual; stages' own differences cancel. What the
    work grew on all of them (longer sequences) is no fault of the largest: usual is then as much more."""
    out = []
    stage_of = {int(i): rank for rank, stage in stages(table).items() for i in stage}
    for chain in table.chains:
        usual = {int(i): past.usual_of(stage_of[int(i)], config) for i in chain}
        who = np.array([i for i in usual if usual[i]], np.int64)
        if len(who) < 2:
            continue
        columns = {name: np.array([usual[int(i)][name] for i in who]) for name in KEPT}
        grew = {name: _all_grew(table.budget[name][who], columns[name]) for name in ("compute_ns", "kernels", "blocks")}
        columns = {name: grew.get(name, grew["compute_ns"]) * values for name, values in columns.items()}
        wait = np.where(np.isfinite(table.budget["comm_exposed_ns"][who]), 0.0, np.nan)
        worst = np.zeros(wait.shape, LATENESS_ROW)
        name = " ".join(str(rank) for rank in table.ranks[chain].tolist())
        out.append(Meeting(name, len(chain), who, wait, wait, worst, usual=columns))
    return out


def _all_grew(now: Floats, usual: Floats) -> float:
    """The ratio that every rank reaches at least, 1.0 or more. `now`: [m, S], `usual`: [m], per step."""
    seen = np.isfinite(now).any(1) & (usual > 0)
    return max(1.0, float((np.nanmean(now[seen], axis=1) / usual[seen]).min())) if seen.any() else 1.0
