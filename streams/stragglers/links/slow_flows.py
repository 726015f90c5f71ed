"""Flows that are slower than expected: than they were in healthy windows, or than others of their kind are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.links.extent import Extent, extent_of
from drumline.streams.stragglers.links.flows import LEAST_BYTES, Floats, Flow

#: Flow -> its rate, and the size of its transfers, in a healthy window (`summarize_flows`).
FlowSummary = Mapping[str, Sequence[float]]
#: Other flows of a kind that are a norm: the median of two is no more than their mean.
LEAST_PEERS = 3
#: Sizes of transfers within this ratio have one rate: latency counts less than bandwidth.
ALIKE = 2.0
#: The standard deviation of a normal distribution over its median absolute deviation.
MAD_TO_SIGMA = 1.4826
#: A flow is slow for the reason of the slowest if the logarithm of its ratio is so much of that one's.
ALIKE_SLOW = 0.5
#: The same for a flow against the one in the opposite direction, between the same ranks. Its acknowledgements wait in
#: the queue of a slow direction, so it becomes slower too: over TCP between two GPUs its part was 0.63 and 0.66 where
#: one direction was slow, 0.88 to 0.94 where both were.
ALIKE_OPPOSITE = 0.75
#: A rate that is none; GB/s.
TINY = 1e-9
#: Windows before in which a flow was slow too, for its peers to show that it is.
LASTING = 2
#: Flows that evidence names.
NAMED = 4


@dataclass(frozen=True, slots=True)
class SlowFlow:
    """Holds a flow and what was expected of it.

    Attributes:
        expected: GB/s.
        is_own: by its own history, else by its peers.
        is_sure: by more than these vary, of peers for some windows. Others are slow only where collectives show that a
            link is.
    """

    flow: Flow
    expected: float
    is_own: bool
    is_sure: bool

    @property
    def ratio(self) -> float:
        """Return how many times slower it is than expected."""
        return self.expected / max(self.flow.rate, TINY)

    @property
    def longer_ns(self) -> float:
        """Return the time by which what was recorded of it took longer."""
        return self.flow.bytes / max(self.flow.rate, TINY) - self.flow.bytes / self.expected


@dataclass(frozen=True)
class SlowFlows:
    """Holds the slow flows of a window.

    Attributes:
        flows: all, that which lost most first.
        alike: those that are about as slow as the slowest: others may be so because of these.
        extent: what those have in common.
    """

    flows: tuple[SlowFlow, ...]
    alike: tuple[SlowFlow, ...]
    extent: Extent

    def evidence(self, hosts: Mapping[int, str]) -> dict[str, Any]:
        """Return it for the job's row. `hosts`: by rank."""
        named = [
            {
                "from": slow.flow.sender, "from_host": hosts.get(slow.flow.sender, ""),
                "to": slow.flow.receiver, "to_host": hosts.get(slow.flow.receiver, ""),
                "nic": " ".join(slow.flow.nics), "to_nic": " ".join(slow.flow.receiver_nics),
                "gb_s": round(slow.flow.rate, 3), "expected_gb_s": round(slow.expected, 3),
                "expected_by": "history" if slow.is_own else "peers", **_of_kernel(slow.flow),
            }
            for slow in self.alike[:NAMED]
        ]  # fmt: skip
        return {**self.extent.evidence(), "slow_flows": len(self.alike), "flows": named}


def find_slow_flows(
    flows: Sequence[Flow],
    history: Sequence[FlowSummary],
    before: Sequence[Collection[str]],
    hosts: Mapping[int, str],
    config: StragglerConfig,
) -> SlowFlows | None:
    """Return the flows that are slow, or None.

    `history`: earlier windows, without what was slow. `before`: names of the flows that were slow in each. A flow is
    compared with itself, by `config.link_ratio`, and has to be slower than in each of them. One without a history is
    compared with the others of its communicator that cross hosts, or do not, as it does: by `config.flow_ratio`, as
    paths may differ by design. Where none is slow without what receivers were late, that counts too, and none is sure.
    """
    evaluated = [flow for flow in flows if flow.bytes >= LEAST_BYTES]
    slow = _slow(evaluated, history, before, hosts, config)
    if not slow:
        whole = [replace(flow, late_ns=0.0) for flow in evaluated]
        slow = [replace(result, is_sure=False) for result in _slow(whole, history, before, hosts, config)]
    if not slow:
        return None
    slow.sort(key=lambda result: (not result.is_sure, -result.longer_ns, result.flow.name))
    likely = [result for result in slow if result.is_sure == slow[0].is_sure]
    least_ratio = max(result.ratio for result in likely) ** ALIKE_SLOW
    alike = _without_opposite([result for result in slow if result.ratio >= least_ratio])
    return SlowFlows(tuple(slow), alike, extent_of([result.flow for result in alike], evaluated, hosts))


def _without_opposite(alike: Sequence[SlowFlow]) -> tuple[SlowFlow, ...]:
    """Return the flows without those that are slow because the opposite one, between the same two ranks, is."""
    worst: dict[tuple[int, int], float] = {}
    for result in alike:
        place = (result.flow.sender, result.flow.receiver)
        worst[place] = max(result.ratio, worst.get(place, 1.0))
    return tuple(
        result
        for result in alike
        if result.ratio >= worst.get((result.flow.receiver, result.flow.sender), 1.0) ** ALIKE_OPPOSITE
    )


def _slow(
    evaluated: Sequence[Flow],
    history: Sequence[FlowSummary],
    before: Sequence[Collection[str]],
    hosts: Mapping[int, str],
    config: StragglerConfig,
) -> list[SlowFlow]:
    kinds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for flow in (flow for flow in evaluated if flow.is_norm):
        kinds[_kind(flow, hosts)].append(flow.rate)
    always = set.intersection(*map(set, before[-LASTING:])) if len(before) >= LASTING else set[str]()
    of_kinds = {kind: _logs(rates) for kind, rates in kinds.items() if len(rates) > LEAST_PEERS}
    slow = list[SlowFlow]()
    for flow in evaluated:
        entries = [entry[flow.name] for entry in history if flow.name in entry][-config.baseline_windows :]
        earlier = [rate for rate, size in entries if flow.transfer_bytes / ALIKE <= size <= flow.transfer_bytes * ALIKE]
        if len(earlier) >= config.link_history:
            slow += _against_itself(flow, _logs(earlier), config)
        elif (peers := of_kinds.get(_kind(flow, hosts))) is not None:
            slow += _against_peers(flow, peers, flow.name in always, config)
    return slow


def _of_kernel(flow: Flow) -> dict[str, float]:
    """Return what the kernel knows of a flow: bytes that it sent again are lost on the way, all of them in a stall."""
    of_stalls = {"stalled_s": round(flow.stalled_ns / 1e9, 3)} if flow.stalled_ns else {}
    return {"retransmitted_mb": round(flow.retransmitted / 1e6, 3), **of_stalls} if flow.over_tcp else {}


def _kind(flow: Flow, hosts: Mapping[int, str]) -> tuple[str, bool]:
    return flow.communicator, hosts.get(flow.sender, "") == hosts.get(flow.receiver, "")


def _logs(rates: Sequence[float]) -> Floats:
    """Return logarithms: rates differ by factors."""
    return np.log(np.maximum(rates, TINY))


def _against_itself(flow: Flow, earlier: Floats, config: StragglerConfig) -> list[SlowFlow]:
    """Return the flow if it is slower than its history, surely if by twice what that ever differed from its median."""
    median, [now] = float(np.median(earlier)), _logs([flow.rate])
    below = median - float(now)
    if below < np.log(config.link_ratio) or now >= earlier.min():
        return []
    return [SlowFlow(flow, float(np.exp(median)), True, below >= 2.0 * float(np.abs(earlier - median).max()))]


def _against_peers(flow: Flow, peers: Floats, is_lasting: bool, config: StragglerConfig) -> list[SlowFlow]:
    """Return the flow if it is slower than most of its kind, surely if by `config.changed_spreads`, and for long.

    The slowest flow of a ring keeps the others waiting, whose data sockets take in at the pace of memory: of equal
    links one seems slow, another one each time.
    """
    median, [now] = float(np.median(peers)), _logs([flow.rate])
    below, spread = median - float(now), MAD_TO_SIGMA * float(np.median(np.abs(peers - median)))
    if below < np.log(config.flow_ratio):
        return []
    return [SlowFlow(flow, float(np.exp(median)), False, is_lasting and below >= config.changed_spreads * spread)]
