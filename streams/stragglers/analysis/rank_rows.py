"""The rows of a verdict that are about one rank, with cause and evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from drumline.infra.guidance.causes import HOST_STALL, SLOW_COMPUTE, SLOW_GPU, UNKNOWN
from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.lateness.collective_rows import OPERATIONS
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.cause import (
    DETAILS,
    NO_CAUSE,
    WAITING,
    GroupBudget,
    find_cause,
)
from drumline.streams.stragglers.analysis.gpu_cause import PEERS, GpuSamples, device_detail, shared_gpu
from drumline.streams.stragglers.analysis.host_cause import NO_CPU, ProcessSamples, host_detail
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict, Samples, SamplesOf
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, WindowData

#: Details of idle time that give way to what the host or the GPU shows: waiting for the GPU has other reasons too.
NOT_KNOWN = ("", DETAILS["idle_ns"][WAITING])
Wrapped = TypeVar("Wrapped", GpuSamples, ProcessSamples)


class RankRows:
    """Builds the rows of a window's ranks. What late ranks share is computed once: half of a large job may be late.

    `baseline_compute_ns`: see `find_cause`.
    """

    def __init__(
        self,
        data: WindowData,
        attribution: Attribution,
        baseline_compute_ns: float | None,
        samples: Samples,
        config: StragglerConfig,
    ) -> None:
        self._data, self._attribution, self._config = data, attribution, config
        self._ranks, self._shares, self._lost = (
            values.tolist() for values in (data.ranks, attribution.share, attribution.lost_ns)
        )
        self._baseline_compute_ns = baseline_compute_ns
        self._gpu, self._host = _once(samples.gpu, GpuSamples), _once(samples.host, ProcessSamples)
        self._budgets = [GroupBudget(data, group, config) for group in data.communicators]  # those with a baseline
        lockstep = [GroupBudget(data, group, config) for group in data.lockstep_groups]
        self._lockstep = {index: budget for budget in lockstep for index in budget.group.members.tolist()}

    def row(self, index: int, lateness_ns: int = 0, wait_ns: int = 0) -> RankVerdict:
        """Return the row of the rank at `index` of `WindowData.ranks`, with its totals."""
        data, attribution, config = self._data, self._attribution, self._config
        gpu, host = self._gpu, self._host
        rank, share, lost = self._ranks[index], self._shares[index], round(self._lost[index])
        severity = config.severity(share)
        if severity == OK:
            return RankVerdict(rank, OK, NO_CAUSE, lost, share, lateness_ns, wait_ns)
        budget = self._budgets[int(attribution.via[index])]
        group = budget.group
        budget = budget if group.baseline is not None else self._lockstep[index]
        peers = budget.group
        cause = find_cause(budget, _row(peers, index), self._baseline_compute_ns, lost)
        more: dict[str, object] = {}
        peer_ranks = self._peers_in(peers, index)
        if gpu is not None and cause.detail == "same_work":
            of_peers = [gpu(peer) for peer in peer_ranks]
            detail, more = device_detail(gpu(rank), of_peers, cause.slowdown, config)
            cause = replace(cause, detail=detail or cause.detail)
        if host is not None and cause.cause == HOST_STALL:
            time_ns = float(np.nansum(data.budget["gpu_duration_ns"][index]))
            idle_ns = min(cause.excess_ns["idle_ns"], lost)  # peers that wait are idle less: only what was lost counts
            processes = [host(peer) for peer in peer_ranks]
            detail, numbers = host_detail(host(rank), processes, time_ns, idle_ns, config)
            more = {"host": numbers} if numbers else {}
            is_known = cause.detail not in NOT_KNOWN and detail not in NO_CPU
            cause = replace(cause, detail=cause.detail if is_known else detail or cause.detail)
        by_host = cause.cause == HOST_STALL and cause.detail not in NOT_KNOWN
        # A GPU that others have in turn is idle for this rank meanwhile, and its host waits for it.
        if gpu is not None and cause.cause in (HOST_STALL, SLOW_GPU, UNKNOWN) and not by_host:
            shared = shared_gpu(gpu(rank), [gpu(peer) for peer in peer_ranks])
            if shared:
                cause, more = replace(cause, cause=SLOW_COMPUTE, detail="shared_gpu", confidence="medium"), shared
        if len(group.members) < len(self._ranks):  # else all are
            more = {**more, "peers": self._peers_in(group, index)}
        if group.guessed:
            cause, more = replace(cause, confidence="low"), {**more, "communicators": "guessed"}
        evidence = {
            **_collective(group, index),
            "excess_ns": cause.excess_ns,
            "ratios": cause.ratios,
            "steps": int(attribution.steps[index]),
            **more,
        }
        return RankVerdict(rank, severity, cause, lost, share, lateness_ns, wait_ns, evidence=evidence)

    def _peers_in(self, group: CommunicatorWindow, index: int) -> list[int]:
        """Return other ranks of a group, PEERS at most."""
        peers = group.members[group.members != index]
        ranks: list[int] = self._data.ranks[peers[:: max(1, -(-len(peers) // PEERS))]].tolist()
        return ranks


def _once(read: SamplesOf | None, wrap: Callable[[Rows], Wrapped]) -> Callable[[int], Wrapped] | None:
    """Return rank -> its samples, read once for all ranks that it is a peer of; None = there are none."""
    return None if read is None else cache(lambda rank: wrap(read(rank)))


def _row(group: CommunicatorWindow, index: int) -> int:
    return int(np.flatnonzero(group.members == index)[0])


def _collective(group: CommunicatorWindow, index: int) -> dict[str, Any]:
    """Return the collective in which a rank was latest, or the pipeline of a rank that meets no peers."""
    if group.baseline is not None:
        return {"pipeline": group.name}
    at = group.worst[_row(group, index)]
    position = {"step": int(at["step"]), "ordinal": int(at["worst_ordinal"])}
    return {
        "communicator": group.name,
        "collective": {"operation": OPERATIONS[int(at["worst_operation"])], **position},
        "longest_ns": int(at["worst_longest_ns"]),
        "own_ns": int(at["worst_own_ns"]),
    }
