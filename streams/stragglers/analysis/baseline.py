"""The job's baseline: medians of earlier healthy windows, for changes that no comparison between ranks can show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.slow_link import LinkSummary
from drumline.streams.stragglers.analysis.window_data import Ints, WindowData, step_length
from drumline.streams.stragglers.links.slow_flows import FlowSummary

#: Budget columns kept of a window.
KEPT = ("compute_ns", "compute_overlapped_ns", "copy_ns", "idle_ns", "comm_exposed_ns", "kernels", "blocks")
STEP = "step_ns"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Holds what was kept of earlier healthy windows, oldest first.

    Attributes:
        links: floors of collectives (slow_link.py).
        jobs: of each window the mean step (STEP) and the median rank's KEPT columns.
        ranks: lowest rank of a pipeline stage -> the same of that stage's median rank.
        flows: rates of transfers (links/flows.py), of all windows: a slow flow is in none since it is slow.
        slow: names of the flows that were slow, by window with transfers.
    """

    links: Sequence[LinkSummary] = ()
    jobs: Sequence[Mapping[str, float]] = ()
    ranks: Mapping[int, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    flows: Sequence[FlowSummary] = ()
    slow: Sequence[Collection[str]] = ()

    def job_step(self, config: StragglerConfig) -> dict[str, float]:
        """Return the job's median step, or {} with fewer than `config.baseline_windows_min` windows."""
        return medians(self.jobs) if len(self.jobs) >= config.baseline_windows_min else {}

    def stage_step(self, rank: int, config: StragglerConfig) -> dict[str, float]:
        """Return the median step of the pipeline stage with this lowest rank, or {} as `job_step` does."""
        windows = self.ranks.get(rank, ())
        return medians(windows) if len(windows) >= config.baseline_windows_min else {}


def medians(entries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each kept column, and of the step."""
    return {name: float(np.median([entry[name] for entry in entries])) for name in (*KEPT, STEP)}


def summarize_window(data: WindowData, stages: Mapping[int, Ints]) -> dict[str, Any]:
    """Return what the baseline keeps of a window, as JSON: `job` and, of each pipeline stage, `ranks`.

    `stages`: of pipelines.stage_members. Empty without rows.
    """
    length = step_length(data)
    if not np.isfinite(length).any():
        return {}
    mean = float(np.nanmean(length))
    job = {name: float(np.nanmedian(data.budget[name])) for name in KEPT} | {STEP: mean}
    ranks = {}
    for rank, stage in stages.items():
        seen = stage[np.isfinite(data.budget["comm_exposed_ns"][stage]).any(1)]
        if len(seen):
            columns = {name: float(np.median(np.nanmean(data.budget[name][seen], axis=1))) for name in KEPT}
            ranks[str(rank)] = columns | {STEP: mean}
    return {"job": job, "ranks": ranks}


def load_baseline(entries: Iterable[Mapping[str, Any]], config: StragglerConfig, light: bool = False) -> Baseline:
    """Return the baseline of the last `config.baseline_windows` entries of each kind.

    `entries`: of `summarize_window`, `summarize_links` and `summarize_flows`, oldest first; {} for a window that
    was not healthy. `light`: only light windows count, else only the others.
    """
    kept = [entry for entry in entries if entry and entry.get("light", False) == light]
    last = slice(-config.baseline_windows, None)
    ranks: dict[int, list[Mapping[str, float]]] = {}
    for entry in kept:
        for rank, values in entry.get("ranks", {}).items():
            ranks.setdefault(int(rank), []).append(values)
    return Baseline(
        links=[entry["links"] for entry in kept if entry.get("links")][last],
        jobs=[entry["job"] for entry in kept if entry.get("job")][last],
        ranks={rank: values[last] for rank, values in ranks.items()},
        flows=[entry["flows"] for entry in kept if entry.get("flows")],
        slow=[entry["slow"] for entry in kept if "slow" in entry],
    )


def same_work(data: WindowData, baseline_step: Mapping[str, float], ratio: float) -> bool:
    """Return whether the median rank runs as many kernels and blocks in a step as the baseline, within a ratio."""
    for name in ("kernels", "blocks"):
        now = float(np.nanmedian(data.budget[name])) if np.isfinite(data.budget[name]).any() else 0.0
        low, high = sorted((now, baseline_step[name]))
        if high > ratio * low:
            return False
    return True
