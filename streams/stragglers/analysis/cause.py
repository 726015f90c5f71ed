"""The cause of a rank's lateness: its time budget against that of its lockstep group, component by component."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import (
    CommunicatorWindow,
    Floats,
    WindowData,
    comparable,
    peer_median,
)

#: Budget component -> the cause that it indicates. Their sum is a rank's own time (attribution.py).
HOST_STALL = "host_stall"
COMPONENTS = {"idle_ns": HOST_STALL, "copy_ns": "slow_copy", "compute_ns": "slow_compute"}
#: The cause of an excess of compute in light steps, where the work is not known.
SLOW_GPU = "slow_gpu"
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


NO_CAUSE = Cause("ok")


@dataclass(frozen=True)
class _MemberBudget:
    """Compares row `member` of a group with the member's peers."""

    data: WindowData
    group: CommunicatorWindow
    member: int
    config: StragglerConfig

    def values(self, column: str) -> Floats:
        return comparable(self.data, self.group, column, self.config.quorum)

    def excess(self, column: str) -> float:
        values = self.values(column)
        return float(np.nansum((values - peer_median(self.group, values))[self.member]))

    def excess_over(self, column: str, baseline_ns: float) -> float:
        """Return the excess over a baseline, in the steps that have peers."""
        values = self.values(column)
        compared = np.isfinite(peer_median(self.group, values))
        return float(np.where(compared, values - baseline_ns, 0.0)[self.member].sum())

    def ratio(self, column: str) -> float:
        values = self.values(column)
        spent = float(np.nansum(values[self.member]))
        if self.group.baseline is not None:  # `spent` is the excess over the member's own baseline
            baseline = float(self.group.baseline[column][self.member]) * int(np.isfinite(values[self.member]).sum())
            return round(1.0 + spent / baseline, 4) if baseline > 0 else 1.0
        peers = float(np.nansum(peer_median(self.group, values)[self.member]))
        return round(spent / peers, 4) if peers > 0 else 1.0

    def slowdown(self, compute_excess: float) -> float:
        compute = float(np.nansum(self.values("compute_ns")[self.member])) if self.group.baseline is None else 0.0
        return compute / (compute - compute_excess) if compute > compute_excess > 0.0 else 1.0

    def parts(self, component: str) -> dict[str, float]:
        """Return the excess of the parts of a component that are known.

        A rank that has none of a part where its peers have some may report -1.
        """
        out = {}
        for column in DETAILS.get(component, {}):
            if (self.data.budget[column][self.group.members[self.member]] >= 0).any():
                values = np.maximum(self.values(column), 0.0)
                out[column] = float(np.nansum((values - peer_median(self.group, values))[self.member]))
        return out


def find_cause(
    data: WindowData,
    group: CommunicatorWindow,
    member: int,
    config: StragglerConfig,
    baseline_compute_ns: float | None = None,
    lost_ns: float = 0.0,
) -> Cause:
    """Return the cause for row `member` of a group.

    Peers' compute is inflated while they wait (their kernels share the GPU with a spinning NCCL kernel), which can only
    make an excess of compute smaller. Negative excesses therefore explain nothing and are left out of the sum.

    `baseline_compute_ns`: compute of the median rank in the baseline's step, None if the work differs from it. Peers
    count as no slower than that, but only for what the other components leave of `lost_ns`: all GPUs may be slower than
    in the baseline.
    """
    budget = _MemberBudget(data, group, member, config)
    excess = {name: budget.excess(name) for name in COMPONENTS}
    if baseline_compute_ns is not None and group.baseline is None:
        growth = budget.excess_over("compute_ns", baseline_compute_ns)
        rest = lost_ns - max(0.0, excess["idle_ns"]) - max(0.0, excess["copy_ns"])
        excess["compute_ns"] = max(excess["compute_ns"], min(growth, rest))
    gains = {name: max(0.0, value) for name, value in excess.items()}
    total = sum(gains.values())
    ratios = {} if data.light else {name: budget.ratio(name) for name in ("kernels", "blocks")}
    excess_ns = {name: round(value) for name, value in excess.items()}
    if total <= 0.0:
        return Cause("unknown", "", "low", excess_ns, ratios)
    compute = gains["compute_ns"] / total
    if max(ratios.values(), default=0.0) >= config.imbalance_ratio and compute >= config.imbalance_compute:
        share = compute + gains["idle_ns"] / total
        if share >= config.cause_share:
            return Cause("slow_compute", "more_work", _confidence(share, config), excess_ns, ratios)
    leading = max(gains, key=lambda name: gains[name])
    share = gains[leading] / total
    if share < config.cause_share:
        return Cause("unknown", "mixed", "low", excess_ns, ratios)
    slowdown = round(budget.slowdown(excess["compute_ns"]), 4)
    if data.light and leading == "compute_ns":
        return Cause(SLOW_GPU, "", _confidence(share, config), excess_ns, ratios, slowdown)
    alike = all(1 <= config.equal_ratio * ratio <= config.equal_ratio**2 for ratio in ratios.values())
    detail = "" if leading != "compute_ns" else "same_work" if alike else "other_work"
    parts = budget.parts(leading)
    large = (column for column in parts if parts[column] >= config.cause_share * gains[leading])
    detail = detail or next((DETAILS[leading][column] for column in large), "")
    if leading == "idle_ns":
        excess_ns |= {column: round(part) for column, part in parts.items()}
    return Cause(COMPONENTS[leading], detail, _confidence(share, config), excess_ns, ratios, slowdown)


def _confidence(share: float, config: StragglerConfig) -> str:
    return "high" if share >= config.cause_share_high else "medium"
