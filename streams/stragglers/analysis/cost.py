"""What late ranks cost the others, in GPU-seconds and money. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Floats, WindowTable
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict


def waited(table: WindowTable) -> Floats:
    """[R] ns: how long each rank waited for others in the window: the sum of its waits in collectives. In a pipeline,
    where waiting in a receive cannot be told from the transfer, all its exposed communication (if its own past is
    known: what that is more than usual)."""
    out = np.zeros(len(table.ranks))
    for meeting in table.meetings:
        out[meeting.members] += np.nansum(meeting.wait_ns, axis=1)
    exposed = table.budget["comm_exposed_ns"]
    for chain in table.chains:
        out[chain] = np.maximum(out[chain], np.nansum(exposed[chain], axis=1))
    for meeting in (m for m in table.meetings if m.usual is not None):
        more = exposed[meeting.members] - meeting.usual["comm_exposed_ns"][:, None]  # type: ignore[index]
        out[meeting.members] = np.maximum(0.0, np.nansum(more, axis=1))
    return out


def priced(rows: Sequence[RankVerdict], table: WindowTable, config: StragglerConfig) -> list[RankVerdict]:
    """The rows with `gpu_seconds_lost` and `money_lost`. For each rank w, of those that are named but w itself:

        cost(r, w) = lost(r) * min(1, waited(w) / sum of lost)        cost(r) = sum over w of cost(r, w)

    So r costs w no more than it lost the job, and all together cost w no more than w waited. Ranks that are not named
    cost nothing. The job as a whole (slow link, changed job) costs all its ranks what it lost; nobody is named then.
    """
    place = {int(rank): index for index, rank in enumerate(table.ranks)}
    named = [row for row in rows if row.names_rank]
    lost = np.zeros(len(table.ranks))
    lost[[place[row.rank] for row in named]] = [row.lost_ns for row in named]
    others = lost.sum() - lost
    part = np.minimum(1.0, np.divide(waited(table), others, out=np.zeros(len(lost)), where=others > 0))
    cost = {row.rank: row.lost_ns * float(part.sum() - part[place[row.rank]]) / 1e9 for row in named}
    cost |= {row.rank: row.lost_ns / 1e9 * len(table.ranks) for row in rows if row.rank == WHOLE_JOB}
    price = config.price_per_gpu_hour / 3600.0
    return [replace(row, gpu_seconds_lost=(spent := cost.get(row.rank, 0.0)), money_lost=spent * price) for row in rows]
