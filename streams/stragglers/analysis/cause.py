"""Why a rank was late: its own time budget against the ranks that go at its pace, component by component."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Floats, Meeting, WindowTable, comparable, norm

#: Budget component -> the cause it speaks for. Their sum is a rank's own time (see blame.py).
COMPONENTS = {"idle_ns": "host_stall", "copy_ns": "slow_copy", "compute_ns": "slow_compute"}
#: Parts of a component that only some producers know (-1 otherwise) -> what they make of its cause.
DETAILS = {
    "idle_ns": {"input_ns": "data_loading", "sync_ns": "host_sync", "launch_late_ns": "launch_late"},
    "copy_ns": {"copy_pageable_ns": "pageable"},
}


@dataclass(frozen=True, slots=True)
class Cause:
    """`excess_ns`: component -> what the rank spent more than its median peer; ns over the window, may be negative.
    `slowdown`: its compute over the peers'."""

    cause: str
    detail: str = ""
    confidence: str = "none"
    excess_ns: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    slowdown: float = 1.0


NO_CAUSE = Cause("ok")


def find_cause(
    table: WindowTable,
    meeting: Meeting,
    member: int,
    config: StragglerConfig,
    usual_compute_ns: float | None = None,
    lost_ns: float = 0.0,
) -> Cause:
    """The cause for row `member` of a meeting.

    Peers' compute is inflated while they wait (their kernels share the GPU with a spinning NCCL kernel), which can only
    make an excess of compute smaller; negative excesses therefore explain nothing and are left out of the sum.
    `usual_compute_ns`: a step's compute of the median rank when nobody was late, if the work is the same as then; peers
    count as no slower than that, but only for what the other components leave of `lost_ns`, the rank's loss: all GPUs
    may be slower than they were.
    """
    excess = {name: _excess(table, meeting, member, name, config) for name in COMPONENTS}
    if usual_compute_ns is not None and meeting.usual is None:
        values = comparable(table, meeting, "compute_ns", config.quorum)
        compared = np.isfinite(norm(meeting, values))
        past = float(np.where(compared, values - usual_compute_ns, 0.0)[member].sum())
        rest = lost_ns - max(0.0, excess["idle_ns"]) - max(0.0, excess["copy_ns"])
        excess["compute_ns"] = max(excess["compute_ns"], min(past, rest))
    gains = {name: max(0.0, value) for name, value in excess.items()}
    total = sum(gains.values())
    ratios = {name: _ratio(table, meeting, member, name, config) for name in ("kernels", "blocks")}
    found = {name: round(value) for name, value in excess.items()}
    if total <= 0.0:
        return Cause("unknown", "", "low", found, ratios)
    other_work = max(ratios.values()) >= config.imbalance_ratio
    compute = gains["compute_ns"] / total
    if other_work and compute >= config.imbalance_compute:
        share = compute + gains["idle_ns"] / total
        if share >= config.cause_share:
            return Cause("slow_compute", "more_work", _confidence(share, config), found, ratios)
    leading = max(gains, key=lambda name: gains[name])
    share = gains[leading] / total
    if share < config.cause_share:
        return Cause("unknown", "mixed", "low", found, ratios)
    alike = all(1 <= config.equal_ratio * ratio <= config.equal_ratio**2 for ratio in ratios.values())
    detail = "" if leading != "compute_ns" else "same_work" if alike else "other_work"
    detail = detail or _detail(table, meeting, member, leading, gains[leading], config)
    values = comparable(table, meeting, "compute_ns", config.quorum)
    own = float(np.nansum(values[member])) if meeting.usual is None else 0.0
    slowdown = own / (own - excess["compute_ns"]) if own > excess["compute_ns"] > 0.0 else 1.0
    return Cause(COMPONENTS[leading], detail, _confidence(share, config), found, ratios, round(slowdown, 4))


def _confidence(share: float, config: StragglerConfig) -> str:
    return "high" if share >= config.cause_share_high else "medium"


def _excess(table: WindowTable, meeting: Meeting, member: int, column: str, config: StragglerConfig) -> float:
    values = comparable(table, meeting, column, config.quorum)
    return float(np.nansum((values - norm(meeting, values))[member]))


def _ratio(table: WindowTable, meeting: Meeting, member: int, column: str, config: StragglerConfig) -> float:
    values: Floats = comparable(table, meeting, column, config.quorum)
    if meeting.usual is not None:  # against its own past
        peers = float(meeting.usual[column][member]) * int(np.isfinite(values[member]).sum())
        return round(1.0 + float(np.nansum(values[member])) / peers, 4) if peers > 0 else 1.0
    own, peers = float(np.nansum(values[member])), float(np.nansum(norm(meeting, values)[member]))
    return round(own / peers, 4) if peers > 0 else 1.0


def _detail(
    table: WindowTable, meeting: Meeting, member: int, component: str, excess: float, config: StragglerConfig
) -> str:
    """The part that makes up most of a component's excess. A rank that has none of it where others do may say -1."""
    for column, detail in DETAILS.get(component, {}).items():
        if not (table.budget[column][meeting.members[member]] >= 0).any():
            continue
        values = np.maximum(comparable(table, meeting, column, config.quorum), 0.0)
        if float(np.nansum((values - norm(meeting, values))[member])) >= config.cause_share * excess:
            return detail
    return ""
