"""Extent of slow flows: one flow, one network device, two hosts, one host, or everything. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from drumline.streams.stragglers.links.flows import Flow

#: Details of `slow_link`: what is slow.
ONE_FLOW, ONE_NIC, ONE_PAIR, ONE_HOST = "one_flow", "one_nic", "one_pair", "one_host"
SEVERAL_FLOWS, ALL_FLOWS = "several_flows", "all_flows"
#: Directions: of a host or device its sends or receives; of a pair, from one to the other; or both.
SENDS, RECEIVES, ONE_WAY, BOTH = "sends", "receives", "one_way", "both"
#: Part of the flows of a host, a device or a job of which it is said that all are slow.
NEARLY_ALL = 0.8


@dataclass(frozen=True, slots=True)
class Extent:
    """Holds what is slow. `host`, `to_host`: of a pair in this order, else one host; `nic`: its device; "" = none."""

    detail: str
    direction: str = ""
    host: str = ""
    to_host: str = ""
    nic: str = ""

    def evidence(self) -> dict[str, str]:
        """Return what is known of it."""
        names = {"direction": self.direction, "link_host": self.host, "link_to_host": self.to_host, "nic": self.nic}
        return {name: value for name, value in names.items() if value}


def extent_of(slow: Sequence[Flow], evaluated: Sequence[Flow], hosts: Mapping[int, str]) -> Extent:
    """Return what slow flows have in common. `evaluated`: all flows that could be evaluated. `hosts`: by rank."""
    places = {hosts.get(rank, "") for flow in evaluated for rank in (flow.sender, flow.receiver)}
    if len(places) > 2 and len(slow) >= NEARLY_ALL * len(evaluated):
        return Extent(ALL_FLOWS)
    pairs = {_hosts(flow, hosts) for flow in slow}
    if len({frozenset(pair) for pair in pairs}) == 1:
        return _pair_extent(slow, evaluated, hosts)
    for host in sorted(set.intersection(*(set(pair) for pair in pairs)) - {""}):
        if extent := _host_extent(host, slow, evaluated, hosts):
            return extent
    return Extent(SEVERAL_FLOWS)


def _hosts(flow: Flow, hosts: Mapping[int, str]) -> tuple[str, str]:
    return hosts.get(flow.sender, ""), hosts.get(flow.receiver, "")


def _pair_extent(slow: Sequence[Flow], evaluated: Sequence[Flow], hosts: Mapping[int, str]) -> Extent:
    """Return the extent of slow flows between the same two hosts."""
    worst = slow[0]
    (host, to_host), pairs = _hosts(worst, hosts), {(flow.sender, flow.receiver) for flow in slow}
    nics = {nic for flow in slow for nic in flow.nics if _hosts(flow, hosts) == (host, to_host)}
    nic = next(iter(nics)) if len(nics) == 1 else ""
    direction = ONE_WAY if len({_hosts(flow, hosts) for flow in slow}) == 1 else BOTH
    between = [flow for flow in evaluated if set(_hosts(flow, hosts)) == {host, to_host}]
    if len({frozenset(pair) for pair in pairs}) == 1:
        return Extent(ONE_FLOW, BOTH if len(pairs) > 1 else ONE_WAY, host, to_host, nic)
    if direction == ONE_WAY:
        between = [flow for flow in between if _hosts(flow, hosts) == (host, to_host)]
    detail = ONE_PAIR if len(slow) >= NEARLY_ALL * len(between) else SEVERAL_FLOWS
    return Extent(detail, direction, host, to_host, nic)


def _host_extent(host: str, slow: Sequence[Flow], evaluated: Sequence[Flow], hosts: Mapping[int, str]) -> Extent | None:
    """Return the extent of slow flows of a host with several others, or None if it is neither host nor device."""
    nics = {nic for flow in slow for nic in _nics(flow, host, hosts)}
    crossing = [flow for flow in evaluated if host in _hosts(flow, hosts)]
    of_nic = [flow for flow in crossing if not nics.isdisjoint(_nics(flow, host, hosts))]
    is_known = all(_nics(flow, host, hosts) for flow in slow)  # what is slow without a device may be on any
    is_nic = is_known and len(nics) == 1 and len(of_nic) < len(crossing)
    candidates = of_nic if is_nic else crossing
    slow_names = {flow.name for flow in slow}

    def share(is_of: Callable[[Flow], bool]) -> float:
        chosen = [flow for flow in candidates if is_of(flow)]
        return sum(flow.name in slow_names for flow in chosen) / len(chosen) if chosen else 0.0

    sends = share(lambda flow: hosts.get(flow.sender) == host) >= NEARLY_ALL
    receives = share(lambda flow: hosts.get(flow.receiver) == host) >= NEARLY_ALL
    if not (sends or receives):
        return None
    direction = BOTH if sends and receives else SENDS if sends else RECEIVES
    return Extent(ONE_NIC if is_nic else ONE_HOST, direction, host, nic=next(iter(nics)) if len(nics) == 1 else "")


def _nics(flow: Flow, host: str, hosts: Mapping[int, str]) -> tuple[str, ...]:
    return flow.nics if hosts.get(flow.sender) == host else flow.receiver_nics
