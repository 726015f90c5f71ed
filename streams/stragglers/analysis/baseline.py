"""What a job was like when nobody was late: the measure for what no comparison between ranks can show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Ints, WindowTable, step_length
from drumline.streams.stragglers.analysis.slow_link import Summary

#: Budget columns kept of a window.
KEPT = ("compute_ns", "compute_overlapped_ns", "copy_ns", "idle_ns", "comm_exposed_ns", "kernels", "blocks")
STEP = "step_ns"


@dataclass(frozen=True, slots=True)
class Past:
    """`links`: see links.py, oldest first. `jobs`: of each window the mean step (STEP) and the median rank's KEPT.
    `ranks`: lowest rank of a pipeline's stage -> the same of that stage's median rank."""

    links: Sequence[Summary] = ()
    jobs: Sequence[Mapping[str, float]] = ()
    ranks: Mapping[int, Sequence[Mapping[str, float]]] = field(default_factory=dict)

    def usual(self, config: StragglerConfig) -> dict[str, float]:
        """Medians over the windows; empty below `config.past_windows_min`."""
        return medians(self.jobs) if len(self.jobs) >= config.past_windows_min else {}

    def usual_of(self, rank: int, config: StragglerConfig) -> dict[str, float]:
        mine = self.ranks.get(rank, ())
        return medians(mine) if len(mine) >= config.past_windows_min else {}


def medians(entries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.median([entry[name] for entry in entries])) for name in (*KEPT, STEP)}


def of_window(table: WindowTable, stages: Mapping[int, Ints]) -> dict[str, Any]:
    """What is kept of a window, as JSON: `job` and, of each stage of a pipeline (chains.py), `ranks`. Empty without
    rows."""
    length = step_length(table)
    if not np.isfinite(length).any():
        return {}
    mean = float(np.nanmean(length))
    job = {name: float(np.nanmedian(table.budget[name])) for name in KEPT} | {STEP: mean}
    ranks = {}
    for rank, stage in stages.items():
        seen = stage[np.isfinite(table.budget["comm_exposed_ns"][stage]).any(1)]
        if len(seen):
            mine = {name: float(np.median(np.nanmean(table.budget[name][seen], axis=1))) for name in KEPT}
            ranks[str(rank)] = mine | {STEP: mean}
    return {"job": job, "ranks": ranks}


def read(entries: Iterable[Mapping[str, Any]], config: StragglerConfig) -> Past:
    """From what earlier windows kept, oldest first; the last `config.past_windows` of each kind count."""
    kept = [entry for entry in entries if entry]
    last = slice(-config.past_windows, None)
    ranks: dict[int, list[Mapping[str, float]]] = {}
    for entry in kept:
        for rank, values in entry.get("ranks", {}).items():
            ranks.setdefault(int(rank), []).append(values)
    return Past(
        links=[entry["links"] for entry in kept if entry.get("links")][last],
        jobs=[entry["job"] for entry in kept if entry.get("job")][last],
        ranks={rank: values[last] for rank, values in ranks.items()},
    )


def same_work(table: WindowTable, usual: Mapping[str, float], ratio: float) -> bool:
    """Does the median rank run as many kernels and blocks a step as usual, within a ratio?"""
    for name in ("kernels", "blocks"):
        now = float(np.nanmedian(table.budget[name])) if np.isfinite(table.budget[name]).any() else 0.0
        low, high = sorted((now, usual[name]))
        if high > ratio * low:
            return False
    return True
