"""Groups of ranks: those that run in lockstep, and those that are late as a whole.

Lockstep groups are ranks that meet in some communicator, directly or through other ranks. The lost time and the cause
of a rank are measured against its lockstep group too, not only against the ranks of one communicator. Of two ranks that
meet, the data does not show which is at fault, and a rank with less work waits for a partner that is as fast as all
others.

All ranks of a host, or of a communicator smaller than the job, may be late with one cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from drumline.streams.stragglers.analysis.pipelines import joined
from drumline.streams.stragglers.analysis.window_data import GUESSED, WORST_ROW, CommunicatorWindow, Ints, WindowData

#: Members may differ by this factor in their cost; beyond it the largest is a straggler of its own.
ALIKE = 2.0


def labels(hosts: Mapping[int, str], communicators: Mapping[str, Iterable[int]]) -> dict[str, frozenset[int]]:
    """Return label -> ranks of each candidate. `hosts`: rank -> host; `communicators`: name -> ranks."""
    by_host: dict[str, set[int]] = {}
    for rank, host in hosts.items():
        by_host.setdefault(host, set()).add(rank)
    out = {f"host {host}": frozenset(ranks) for host, ranks in sorted(by_host.items()) if host}
    out |= {f"communicator {name}": frozenset(ranks) for name, ranks in sorted(communicators.items())}
    return out


def groups_late(
    late: Mapping[int, tuple[str, float]], ranks: Sequence[int], candidates: Mapping[str, frozenset[int]]
) -> dict[int, str]:
    """Return late rank -> the largest candidate that is late as a whole with it; hosts before communicators.

    `late`: rank -> (cause, cost). `ranks`: of the job. A candidate is late as a whole if it has two ranks or more but
    not all of the job's, all of its ranks are late for the same cause, and none costs more than ALIKE times another.
    """
    label_of: dict[int, str] = {}
    order = sorted(candidates, key=lambda label: (-len(candidates[label]), not label.startswith("host "), label))
    for label in order:
        members = candidates[label]
        if not 2 <= len(members) < len(ranks) or not members <= late.keys() or members & label_of.keys():
            continue
        costs = [late[rank][1] for rank in members]
        if len({late[rank][0] for rank in members}) == 1 and max(costs) <= ALIKE * min(costs):
            label_of |= dict.fromkeys(members, label)
    return label_of


def lockstep_groups(data: WindowData) -> list[CommunicatorWindow]:
    """Return a group for each set of ranks of one role that run in lockstep.

    Its size is 0, so that its members are compared however few are present. `wait_ns` is 0 where a rank was compared in
    any communicator, NaN elsewhere; `lag_ns` is the largest of its communicators.
    """
    communicators = [group for group in data.communicators if group.baseline is None]
    shape = data.budget["comm_exposed_ns"].shape
    wait, lag = np.full(shape, np.nan), np.full(shape, np.nan)
    for group in communicators:
        members = group.members
        wait[members] = np.where(np.isfinite(group.wait_ns), 0.0, wait[members])
        lag[members] = np.fmax(lag[members], group.lag_ns)
    name = GUESSED if any(group.guessed for group in communicators) else ""
    have_roles = any(group.roles is not None for group in communicators)
    out = []
    for ranks in joined(part.tolist() for group in communicators for part in _by_role(group)):
        members = np.array(sorted(ranks), np.int64)
        roles = np.zeros(len(members), np.int64) if have_roles else None
        worst, zeros = np.zeros(len(members), WORST_ROW), wait[members]
        out.append(CommunicatorWindow(name, 0, members, zeros, zeros, worst, lag[members], roles))
    return out


def _by_role(group: CommunicatorWindow) -> list[Ints]:
    if group.roles is None:
        return [group.members]
    return [group.members[group.roles == role] for role in np.unique(group.roles)]
