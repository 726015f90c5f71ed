"""Pipelines whose ranks have no peers: one replica only. Each rank is compared with its own past. Pure."""

from __future__ import annotations

import numpy as np

from drumline.streams.blame import Blame, Ints, Meeting, WindowTable
from drumline.streams.matching import LATENESS_ROW
from drumline.streams.past import KEPT, Past
from drumline.streams.thresholds import StragglerConfig


def alone(table: WindowTable, found: Blame) -> Ints:
    """Indices of ranks in a pipeline that no rank of their own stage was compared with."""
    members = np.unique(np.concatenate([np.zeros(0, np.int64), *table.chains]))
    lonely: Ints = members[found.steps[members] == 0]
    return lonely


def chain_meetings(table: WindowTable, past: Past, config: StragglerConfig) -> list[Meeting]:
    """A meeting per pipeline, of the ranks that have a past. All ranks of a pipeline go at one pace, so a rank that
    works x longer than usual makes the others wait x longer than usual; stages' own differences cancel."""
    out = []
    for chain in table.chains:
        usual = {int(i): past.usual_of(int(table.ranks[i]), config) for i in chain}
        who = np.array([i for i in usual if usual[i]], np.int64)
        if len(who) < 2:
            continue
        columns = {name: np.array([usual[int(i)][name] for i in who]) for name in KEPT}
        wait = np.where(np.isfinite(table.budget["comm_exposed_ns"][who]), 0.0, np.nan)
        worst = np.zeros(wait.shape, LATENESS_ROW)
        name = " ".join(str(rank) for rank in table.ranks[chain].tolist())
        out.append(Meeting(name, len(chain), who, wait, wait, worst, usual=columns))
    return out
