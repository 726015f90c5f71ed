"""What is late as a whole: all ranks of a host, or of a communicator smaller than the job, blamed for one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: Members may differ by this factor in what they cost; more, and the largest is a straggler of its own.
ALIKE = 2.0


def labels(hosts: Mapping[int, str], communicators: Mapping[str, Iterable[int]]) -> dict[str, frozenset[int]]:
    """Label -> its ranks. `hosts`: rank -> host; `communicators`: name -> ranks."""
    by_host: dict[str, set[int]] = {}
    for rank, host in hosts.items():
        by_host.setdefault(host, set()).add(rank)
    out = {f"host {host}": frozenset(ranks) for host, ranks in sorted(by_host.items()) if host}
    out |= {f"communicator {name}": frozenset(ranks) for name, ranks in sorted(communicators.items())}
    return out


def groups_late(
    blamed: Mapping[int, tuple[str, float]], everybody: Sequence[int], candidates: Mapping[str, frozenset[int]]
) -> dict[int, str]:
    """Blamed rank -> the largest candidate that is late as a whole with it; hosts before communicators.

    `blamed`: rank -> (cause, cost). A candidate is late as a whole if it has two ranks or more but not all, every one
    of them is blamed, for the same cause, and none costs more than ALIKE times another.
    """
    found: dict[int, str] = {}
    order = sorted(candidates, key=lambda label: (-len(candidates[label]), not label.startswith("host "), label))
    for label in order:
        ranks = candidates[label]
        if not 2 <= len(ranks) < len(everybody) or not ranks <= blamed.keys() or ranks & found.keys():
            continue
        costs = [blamed[rank][1] for rank in ranks]
        if len({blamed[rank][0] for rank in ranks}) == 1 and max(costs) <= ALIKE * min(costs):
            found |= dict.fromkeys(ranks, label)
    return found
