"""Groups that are late as a whole: all ranks of a host, or of a communicator smaller than the job, with one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
