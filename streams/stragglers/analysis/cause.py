"""The cause of a rank's lateness: its time budget against that of its lockstep group, component by component."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.infra.guidance.causes import (
    HOST_STALL,
    NAMES,
    OK,
    SLOW_COMPUTE,
    SLOW_COPY,
    SLOW_GPU,
    UNKNOWN,
)
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import (
    CommunicatorWindow,
    Floats,
    WindowData,
    comparable,
    peer_median,
)

#: Budget component -> the cause that it indicates. Their sum is a rank's own time (attribution.py).
COMPONENTS = {"idle_ns": HOST_STALL, "copy_ns": SLOW_COPY, "compute_ns": SLOW_COMPUTE}
#: Parts of a component that only some producers know (-1 otherwise) -> the detail of the cause that they indicate. They
#: may lie in each other: the first that is large enough counts. Others may wait for the GPU too, so that comes last.
DETAILS = {
    "idle_ns": {
        "gc_ns": "garbage_collection",
        "checkpoint_ns": "checkpoint",
        "load_ns": "data_loader",
        "input_ns": "data_loader",
        "sync_ns": "synchronisation",
    },
    "copy_ns": {"copy_pageable_ns": "pageable"},
}


#: Waiting for the GPU, and what it must be of the excess at least. After each wait the GPU has nothing to do until the
#: host has launched again. Where it launches once for each wait, waits are 0.34 to 0.42 of that time (recorded), so a
#: sixth where it launches three times. Ranks that are late without it wait no longer than peers: 0.03 (recorded). What
#: waits cost alone must be suspect too: by jitter they were 0.2 of an excess, and 1.4 % of the time (recorded).
WAITING, WAITING_SHARE = "sync_ns", 1 / 6


@dataclass(frozen=True, slots=True)
class Cause:
    """Holds the cause class of a verdict and the numbers behind it.

    Attributes:
        cause, detail, confidence: as gpu.straggler.v1 writes them.
        excess_ns: component -> how much more the rank spent than its median peer; ns over the window, may be negative.
        ratios: `kernels` and `blocks` of the rank over those of its peers.
        slowdown: compute of the rank over that of its peers.
    """

    cause: str
    detail: str = ""
    confidence: str = "none"
    excess_ns: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError for a name that nobody can look up."""
        if (self.cause, self.detail) not in NAMES:
            raise ValueError(f"cause {self.cause} {self.detail}: infra/guidance/causes.py does not have it")


NO_CAUSE = Cause(OK)


class GroupBudget:
    """Compares the members of a group with their peers. Each column is compared once, however many members are late."""

    def __init__(self, data: WindowData, group: CommunicatorWindow, config: StragglerConfig) -> None:
        self.data, self.group, self.config = data, group, config
        self._compute: tuple[Floats, Floats] | None = None
        self._excess: dict[tuple[str, bool], list[float]] = {}
        self._sums: dict[str, tuple[list[float], list[float], list[int]]] = {}

    def compared(self, column: str, known: bool = False) -> tuple[Floats, Floats]:
        """Return [m, S] values and medians of the peers. `known`: what is unknown (-1) counts as 0."""
        if column == "compute_ns" and self._compute is not None:
            return self._compute
        values = comparable(self.data, self.group, column, self.config.quorum)
        values = np.maximum(values, 0.0) if known else values
        if column == WAITING and self.group.baseline is None:  # while the GPU communicates it is for other ranks
            exposed = comparable(self.data, self.group, "comm_exposed_ns", self.config.quorum)
            values = np.maximum(values - exposed, 0.0)
        compared = values, peer_median(self.group, values)
        if column == "compute_ns":  # read by member; all columns of a large group are 100 MB
            self._compute = compared
        return compared

    def excess(self, member: int, column: str, known: bool = False) -> float:
        """Return how much more a member spent than its median peer; ns over the window."""
        if (column, known) not in self._excess:
            values, medians = self.compared(column, known)
            self._excess[column, known] = np.nansum(values - medians, axis=1).tolist()
        return self._excess[column, known][member]

    def excess_over(self, member: int, column: str, baseline_ns: float) -> float:
        """Return the excess over a baseline, in the steps that have peers."""
        values, medians = self.compared(column)
        return float(np.where(np.isfinite(medians[member]), values[member] - baseline_ns, 0.0).sum())

    def ratio(self, member: int, column: str) -> float:
        """Return what a member spent over what its peers spent, or over its own baseline."""
        if column not in self._sums:
            values, medians = self.compared(column)
            spent_of, peers_of = (np.nansum(side, axis=1).tolist() for side in (values, medians))
            self._sums[column] = spent_of, peers_of, np.isfinite(values).sum(1).tolist()
        spent, peers, steps = (of_members[member] for of_members in self._sums[column])
        if self.group.baseline is not None:  # `spent` is the excess over the member's own baseline
            baseline = float(self.group.baseline[column][member]) * steps
            return round(1.0 + spent / baseline, 4) if baseline > 0 else 1.0
        return round(spent / peers, 4) if peers > 0 else 1.0

    def slowdown(self, member: int, compute_excess: float) -> float:
        """Return the compute of a member over its compute without the excess."""
        compute = float(np.nansum(self.compared("compute_ns")[0][member])) if self.group.baseline is None else 0.0
        return compute / (compute - compute_excess) if compute > compute_excess > 0.0 else 1.0

    def parts(self, member: int, component: str) -> dict[str, float]:
        """Return the excess of the parts of a component that are known.

        A rank that has none of a part where its peers have some may report -1.
        """
        index = self.group.members[member]
        known = (column for column in DETAILS.get(component, {}) if (self.data.budget[column][index] >= 0).any())
        return {column: self.excess(member, column, known=True) for column in known}


def find_cause(
    budget: GroupBudget, member: int, baseline_compute_ns: float | None = None, lost_ns: float = 0.0
) -> Cause:
    """Return the cause for row `member` of a group.

    Peers' compute is inflated while they wait (their kernels share the GPU with a spinning NCCL kernel), which can only
    make an excess of compute smaller. Negative excesses therefore explain nothing and are left out of the sum.

    `baseline_compute_ns`: compute of the median rank in the baseline's step, None if the work differs from it. Peers
    count as no slower than that, but only for what the other components leave of `lost_ns`: all GPUs may be slower than
    in the baseline.
    """
    config, light = budget.config, budget.data.light
    excess = {name: budget.excess(member, name) for name in COMPONENTS}
    if baseline_compute_ns is not None and budget.group.baseline is None:
        growth = budget.excess_over(member, "compute_ns", baseline_compute_ns)
        rest = lost_ns - max(0.0, excess["idle_ns"]) - max(0.0, excess["copy_ns"])
        excess["compute_ns"] = max(excess["compute_ns"], min(growth, rest))
    gains = {name: max(0.0, value) for name, value in excess.items()}
    total = sum(gains.values())
    ratios = {} if light else {name: budget.ratio(member, name) for name in ("kernels", "blocks")}
    excess_ns = {name: round(value) for name, value in excess.items()}
    if total <= 0.0:
        return Cause(UNKNOWN, "", "low", excess_ns, ratios)
    compute = gains["compute_ns"] / total
    if max(ratios.values(), default=0.0) >= config.imbalance_ratio and compute >= config.imbalance_compute:
        share = compute + gains["idle_ns"] / total
        if share >= config.cause_share:
            return Cause(SLOW_COMPUTE, "more_work", _confidence(share, config), excess_ns, ratios)
    leading = max(gains, key=lambda name: gains[name])
    share = gains[leading] / total
    if share < config.cause_share:
        if light and (span := _explaining_span(budget, member, lost_ns)):
            return Cause(HOST_STALL, span, "medium", excess_ns, ratios)
        return Cause(UNKNOWN, "mixed", "low", excess_ns, ratios)
    slowdown = round(budget.slowdown(member, excess["compute_ns"]), 4)
    if light and leading == "compute_ns":
        return Cause(SLOW_GPU, "", _confidence(share, config), excess_ns, ratios, slowdown)
    alike = all(1 <= config.equal_ratio * ratio <= config.equal_ratio**2 for ratio in ratios.values())
    detail = "" if leading != "compute_ns" else "same_work" if alike else "other_work"
    parts = budget.parts(member, leading)
    explained = min(gains[leading], lost_ns) if lost_ns > 0.0 else gains[leading]  # peers that wait are idle less
    least = dict.fromkeys(parts, config.cause_share * explained)
    if WAITING in parts:
        time_ns = float(np.nansum(budget.data.budget["gpu_duration_ns"][budget.group.members[member]]))
        least[WAITING] = max(WAITING_SHARE * explained, config.suspect * time_ns)
    large = (column for column in parts if parts[column] >= least[column])
    detail = detail or next((DETAILS[leading][column] for column in large), "")
    if leading == "idle_ns":
        excess_ns |= {column: round(part) for column, part in parts.items()}
    return Cause(COMPONENTS[leading], detail, _confidence(share, config), excess_ns, ratios, slowdown)


def _explaining_span(budget: GroupBudget, member: int, lost_ns: float) -> str:
    """Return the detail of the host's time that explains a rank's loss by itself, "" without one.

    Compute of light steps is not measured: it is what waits may have hidden (light_overlap.py).
    """
    details, least = DETAILS["idle_ns"], budget.config.cause_share * lost_ns
    parts = budget.parts(member, "idle_ns") if lost_ns > 0.0 else {}
    return next((details[column] for column, part in parts.items() if column != WAITING and part >= least), "")


def _confidence(share: float, config: StragglerConfig) -> str:
    return "high" if share >= config.cause_share_high else "medium"
