"""The cost of late ranks to their peers, in GPU-seconds and money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import waited_anywhere
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData


def waited(data: WindowData, in_receives: bool = True) -> Floats:
    """Return [R] ns: how long each rank waited for its peers in the window, as the sum of its waits in collectives.

    In a pipeline the waiting in a receive cannot be separated from the transfer, so all exposed communication counts
    with `in_receives`; where the rank's baseline is known, only what exceeds it.
    """
    out: Floats = waited_anywhere(data).sum(1)
    exposed = data.budget["comm_exposed_ns"]
    for pipeline in data.pipelines if in_receives else []:
        out[pipeline] = np.maximum(out[pipeline], np.nansum(exposed[pipeline], axis=1))
    for group in data.communicators:
        if group.baseline is not None:
            more = exposed[group.members] - group.baseline["comm_exposed_ns"][:, None]
            out[group.members] = np.maximum(0.0, np.nansum(more, axis=1))
    return out


def shared_out(rows: Sequence[RankVerdict], data: WindowData) -> list[RankVerdict]:
    """Return the rows of ranks with no more lost, together, than was lost in all: L.

    L is what a rank waited for others and was late itself: the upper quartile, as some have less work, and no less than
    any rank's own part. Ranks that are late after one another add up to it. What those that are late at the same time
    have in common is shared out in proportion, first among named ranks, then what is left among the others. Late groups
    count once.
    """
    ranks = [row for row in rows if row.rank != WHOLE_JOB]
    if not ranks:
        return list(rows)
    lost = {row.rank: row.lost_ns for row in ranks}
    in_all = waited(data, in_receives=False) + [lost[rank] for rank in data.ranks.tolist()]
    left = max(float(np.quantile(in_all, 0.75, method="higher")), *lost.values())
    parts = dict[bool, float]()
    for named in (True, False):
        units: dict[str, int] = {}
        for row in ranks:
            if row.names_rank == named:
                unit = row.group or str(row.rank)
                units[unit] = max(units.get(unit, 0), row.lost_ns)
        total = sum(units.values())
        parts[named] = min(1.0, left / total) if total else 1.0
        left -= parts[named] * total
    return [row if row.rank == WHOLE_JOB else _part(row, parts[row.names_rank]) for row in rows]


def _part(row: RankVerdict, part: float) -> RankVerdict:
    """Return a row with a part of what was lost. Its severity stays: each of many late ranks is as late as ever."""
    return row if part == 1.0 else replace(row, lost_ns=round(part * row.lost_ns), share=part * row.share)


def priced(rows: Sequence[RankVerdict], data: WindowData, config: StragglerConfig) -> list[RankVerdict]:
    """Return the rows with `gpu_seconds_lost` and `money_lost`.

    For each rank w, with the sum over the named ranks other than w:

        cost(r, w) = lost(r) * min(1, waited(w) / sum of lost)        cost(r) = sum over w of cost(r, w)

    So r costs w no more than it lost the job, and all named ranks together cost w no more than w waited. Ranks that are
    not named cost nothing. The job as a whole (slow link, changed job) costs all its ranks what it lost; no rank is
    named then.
    """
    index_of = {int(rank): index for index, rank in enumerate(data.ranks)}
    named = [row for row in rows if row.names_rank]
    lost = np.zeros(len(data.ranks))
    lost[[index_of[row.rank] for row in named]] = [row.lost_ns for row in named]
    lost_to_peers = lost.sum() - lost
    part = np.divide(waited(data), lost_to_peers, out=np.zeros(len(lost)), where=lost_to_peers > 0)
    part = np.minimum(1.0, part)
    cost = {row.rank: row.lost_ns * float(part.sum() - part[index_of[row.rank]]) / 1e9 for row in named}
    cost |= {row.rank: row.lost_ns / 1e9 * len(data.ranks) for row in rows if row.rank == WHOLE_JOB}
    price = config.price_per_gpu_hour / 3600.0
    return [
        replace(row, gpu_seconds_lost=cost[row.rank], money_lost=cost[row.rank] * price) if row.rank in cost else row
        for row in rows
    ]
