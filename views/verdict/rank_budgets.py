"""Time of each rank of a recorded job, by kind: what one step is enough for."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from drumline.schemas.topics import Topic
from drumline.streams.lateness.collective_rows import KIND, LOCKSTEP
from drumline.views.verdict.recorded_job import OfflineJob

#: Reasons of idle time, and times of the host, which the GPU may spend as it likes: column of gpu.step.v1 -> text.
IDLE_REASONS = {"input_ns": "input"}
HOST_TIMES = {
    "sync_ns": "synchronisation",
    "load_ns": "loading",
    "gc_ns": "garbage collection",
    "checkpoint_ns": "checkpoint",
}


@dataclass(frozen=True)
class RankBudget:
    """Holds the mean time of a rank in one step; ms.

    Attributes:
        steps: number of steps that the means are over; those whose bounds are not known are left out.
        idle_reasons: text -> part of the idle time, where it is known; ms.
        host_times: text -> time that the host spent so, where it is known; ms.
        last_at: number of collectives that the rank came to last, of `compared` ones that all its peers have.
    """

    rank: int
    steps: int
    step_ms: float
    compute_ms: float
    copy_ms: float
    exposed_ms: float
    idle_ms: float
    idle_reasons: dict[str, float]
    host_times: dict[str, float]
    last_at: int
    compared: int

    def as_json(self) -> dict[str, Any]:
        """Return the budget for --json."""
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(self).items()}


def rank_budgets(job: OfflineJob) -> list[RankBudget]:
    """Return the budget of each rank that has steps."""
    last, compared = arrivals(job)
    budgets = []
    for rank in job.ranks:
        rows = job.rows(Topic.STEP, rank)
        usable = np.flatnonzero(rows["skipped"] == 0)
        if not len(usable):
            continue

        def mean(column: str, rows: Any = rows, usable: Any = usable) -> float:
            return float(rows[column][usable].mean()) / 1e6

        reasons, times = (
            {text: mean(name) for name, text in known.items() if (rows[name][usable] >= 0).all()}
            for known in (IDLE_REASONS, HOST_TIMES)
        )
        budgets.append(
            RankBudget(
                rank=rank,
                steps=len(usable),
                step_ms=mean("gpu_duration_ns"),
                compute_ms=mean("compute_ns"),
                copy_ms=mean("copy_ns"),
                exposed_ms=mean("comm_exposed_ns"),
                idle_ms=mean("idle_ns"),
                idle_reasons={text: value for text, value in reasons.items() if value > 0},
                host_times={text: value for text, value in times.items() if value > 0},
                last_at=last[rank],
                compared=compared[rank],
            )
        )
    return budgets


def arrivals(job: OfflineJob) -> tuple[Counter[int], Counter[int]]:
    """Return rank -> collectives that it came to last, and rank -> those that could be compared.

    All ranks leave a collective together, so the one that is in it for the shortest time came last: no clocks are
    compared. Sends and receives, and collectives that a rank of the communicator lacks, are left out.
    """
    members = dict[str, set[int]]()
    durations = dict[tuple[str, int, int], dict[int, int]]()
    for _, batch in job.batches:
        if batch.topic != Topic.COLLECTIVE:
            continue
        rank, communicator = int(batch.envelope["rank"]), str(batch.envelope["communicator"])
        members.setdefault(communicator, set()).add(rank)
        columns, operations = batch.columns, batch.strings("operation", "operations")
        lockstep = np.array([KIND.get(name) == LOCKSTEP for name in operations], bool)
        kept = np.flatnonzero(lockstep & (columns["step"] >= 0))
        keys = zip(columns["step"][kept].tolist(), columns["ordinal"][kept].tolist(), strict=True)
        for (step, ordinal), length in zip(keys, columns["duration_ns"][kept].tolist(), strict=True):
            durations.setdefault((communicator, step, ordinal), {})[rank] = length
    last, compared = Counter[int](), Counter[int]()
    for (communicator, _, _), in_it in durations.items():
        if len(in_it) < 2 or set(in_it) != members[communicator]:
            continue
        first, second = sorted(in_it, key=lambda rank: in_it[rank])[:2]
        last[first] += in_it[first] < in_it[second]
        compared.update(in_it.keys())
    return last, compared
