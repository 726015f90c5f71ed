"""Detection of a slow link: collectives take longer than in earlier windows, or transfers longer than others.

Durations of collectives show that a link is slow, and what it costs; transfers show which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, Floats, WindowData, step_length
from drumline.streams.stragglers.links.flows import Flow
from drumline.streams.stragglers.links.slow_flows import SlowFlows

#: Part of the growth of collectives that a flow has to explain: it overlaps with lateness, and is a mean of all kinds.
EXPLAINED = 0.4
#: Pairs of ranks whose floors are compared: each window keeps 100 bytes of each. A larger pipeline has no floors.
MOST_PAIRS = 4_096
#: communicator -> `kinds`: "operation bytes" -> floor of one such collective, ns; `least`: see _least.
LinkSummary = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Holds how much slower a communicator became.

    Attributes:
        communicator: its name.
        operation, bytes: the collectives that lost most.
        ratio: their floor over its history.
        lost_ns, share: lost time over the window, and its share, of all of the communicator's collectives.
        flows: transfers that are slow; None = not known, or none is.
        by_floors: the collectives show it, not the transfers alone.
        growth_ns: mean growth of the communicator's collectives.
        cpu_wait: part of the time in which processes waited for a CPU, if that explains it (busy_hosts.py).
    """

    communicator: str
    operation: str
    bytes: int
    ratio: float
    lost_ns: float
    share: float
    flows: SlowFlows | None = None
    by_floors: bool = True
    growth_ns: float = 0.0
    cpu_wait: float = 0.0


def summarize_links(data: WindowData) -> LinkSummary:
    """Return what the history keeps of a window: the floor of each communicator, operation and size."""
    out = {}
    for group in _linked(data):
        met = np.any([counts > 0 for counts, _ in group.kinds.values()], axis=0)
        kinds = {f"{operation} {size}": _floor(kind) for (operation, size), kind in group.kinds.items()}
        out[group.name] = {"kinds": kinds, "least": _least(data.budget["comm_exposed_ns"], group, met)}
    return out


def _linked(data: WindowData) -> list[CommunicatorWindow]:
    """Return the groups of which floors are known."""
    pairs = data.pairs if len(data.pairs) <= MOST_PAIRS else ()
    return [group for group in (*data.communicators, *pairs) if group.kinds]


def _floor(kind: Floats) -> int:
    counts, floors = kind
    return round(float(np.median(floors[counts > 0] / counts[counts > 0])))


def _least(exposed: Floats, group: CommunicatorWindow, met: NDArray[np.bool_]) -> int:
    """Return the least exposed communication of a member in a step, ns."""
    values = exposed[group.members][:, met]
    seen = values[np.isfinite(values).any(1)]
    return round(float(np.nanmin(np.nanmedian(seen, axis=1)))) if len(seen) else 0


def find_slow_link(data: WindowData, history: Sequence[LinkSummary], config: StragglerConfig) -> SlowLink | None:
    """Return the communicator that lost the job most against its own history, or None below `config.suspect`.

    `history`: earlier healthy windows. Collectives are compared with those of the same communicator, operation and
    size. The loss is the growth of the floors above `config.link_ratio`, limited to the growth of every member's
    exposed communication: a slower transfer behind compute costs nothing.
    """
    worst: SlowLink | None = None
    length = step_length(data)
    time, steps = float(np.nansum(length)), int(np.isfinite(length).sum())
    now = summarize_links(data)
    for group in _linked(data) if time > 0.0 else ():
        name, grew = group.name, {}
        for (operation, size), (counts, _) in group.kinds.items():
            floors = _floors(history, name, kind := f"{operation} {size}")
            baseline, floor = float(np.median(floors)) if floors else 0.0, now[name]["kinds"][kind]
            if len(floors) >= config.link_history and floor >= config.link_ratio * baseline > 0.0:
                grew[(floor - baseline) * float(counts.sum())] = (operation, size, round(floor / baseline, 3))
        if not grew:
            continue
        least = np.median([entry[name]["least"] for entry in history if name in entry])
        lost = max(0.0, min(sum(grew), float(now[name]["least"] - least) * steps, time))
        if config.severity(lost / time) > OK and (worst is None or lost > worst.lost_ns):
            growth_ns = sum(grew) / sum(float(counts.sum()) for counts, _ in group.kinds.values())
            worst = SlowLink(name, *grew[max(grew)], lost, lost / time, growth_ns=growth_ns)
    return worst


def with_lateness(data: WindowData, flows: Sequence[Flow]) -> list[Flow]:
    """Return flows with the time by which the receiver came later than the sender, as the most that it may have been.

    A rank may be late to one collective of a step, and that one may be what was recorded.
    """
    late: dict[str, Floats] = {}  # by communicator and rank of the job; ns a step
    steps: dict[str, int] = {}
    names = {flow.communicator for flow in flows}
    for group in (group for group in data.communicators if group.name in names):
        seen = np.isfinite(group.lateness_ns)
        total, counts = np.where(seen, group.lateness_ns, 0.0).sum(1), seen.sum(1)
        means = np.divide(total, counts, out=np.full(len(total), np.nan), where=counts > 0)
        late[group.name] = np.full(int(data.ranks.max()) + 1, np.nan)
        late[group.name][data.ranks[group.members]] = means
        steps[group.name] = int(counts.max(initial=0))
    known = ((flow, late.get(flow.communicator), steps.get(flow.communicator, 0)) for flow in flows)
    return [flow if of is None else _with_lateness(flow, of, count) for flow, of, count in known]


def _with_lateness(flow: Flow, late: Floats, steps: int) -> Flow:
    if max(flow.sender, flow.receiver) >= len(late):
        return flow
    later = float(late[flow.receiver] - late[flow.sender]) * min(flow.collectives, steps)
    return replace(flow, late_ns=later) if later > 0.0 else flow


def locate(
    data: WindowData, link: SlowLink | None, flows: SlowFlows | None, history: Sequence[LinkSummary],
    config: StragglerConfig,
) -> SlowLink | None:  # fmt: skip
    """Return the slow link with the transfers that show which one it is, or one that transfers alone show.

    `link`: found by collectives. Where these could be compared with their history and are as short as ever, a flow that
    is slower than it was costs nothing, unless its path stalled: medians of collectives do not show a few long ones.
    What a flow costs that was never faster, collectives cannot show: at most that part of each member's exposed
    communication.
    """
    if flows is None or link is not None:
        return link and replace(link, flows=flows if flows is not None and _explains(flows, link) else None)
    worst = flows.alike[0]
    name = worst.flow.communicator
    groups = [
        group for group in data.communicators if group.name == name or (not name and _has_both(data, group, worst.flow))
    ]
    group = next((group for group in groups if group.name == name), None)
    is_compared = any(
        len(_floors(history, group.name, f"{of} {size}")) >= config.link_history
        for group in groups
        for of, size in group.kinds or {}
    )
    stalled_ns = worst.flow.stalled_ns
    if not worst.is_sure or (worst.is_own and is_compared and not stalled_ns):
        return None
    length = step_length(data)
    time, steps = float(np.nansum(length)), int(np.isfinite(length).sum())
    exposed = data.budget["comm_exposed_ns"]
    members = exposed if group is None else exposed[group.members]
    seen = members[np.isfinite(members).any(1)]
    if not len(seen) or time <= 0.0:
        return None
    least = float(np.nanmin(np.nanmedian(seen, axis=1)))
    stalled = min(stalled_ns, float(np.nanmin(np.nansum(seen, axis=1))))  # one that hides behind kernels costs nothing
    slower = 0.0 if worst.is_own and is_compared else (1.0 - 1.0 / worst.ratio) * least * steps
    lost = min(max(stalled, slower), time)
    if config.severity(lost / time) <= OK:
        return None
    return SlowLink(name, "", 0, round(worst.ratio, 3), lost, lost / time, flows, by_floors=False)


def _has_both(data: WindowData, group: CommunicatorWindow, flow: Flow) -> bool:
    """Return whether both ranks of a flow are members: traffic that NCCL did not record may be for any of these."""
    return {flow.sender, flow.receiver} <= set(data.ranks[group.members].tolist())


def _explains(flows: SlowFlows, link: SlowLink) -> bool:
    """Return whether the slowest flow took so much longer that the communicator's collectives had to.

    Kernels buffer what is sent over sockets. Where that hides the link, a sender's times differ by little. Of TCP all
    bytes of the window are counted; of another communicator it is not known how many collectives they belong to.
    """
    worst = flows.alike[0]
    if worst.flow.over_tcp:
        return worst.longer_ns >= EXPLAINED * link.lost_ns
    if worst.flow.communicator != link.communicator:
        return worst.is_sure
    return worst.longer_ns >= EXPLAINED * link.growth_ns * worst.flow.collectives


def _floors(history: Sequence[LinkSummary], name: str, kind: str) -> list[int]:
    """Return the floors of a communicator's collectives of a kind in earlier windows."""
    return [entry[name]["kinds"][kind] for entry in history if kind in entry.get(name, {}).get("kinds", ())]
