"""Evaluation of what all pairs measured: slow hosts and slow links. Pure.

A host is slow where it is with nearly all rest, a link where its hosts are fast with most rest. Hosts that are so but
fast among themselves share a slower path, and none is at fault. The norm is what the faster quarter reaches: of three
hosts a slow one takes part in two of three pairs. All pairs of a round load the network at once, so what is slow is
measured again alone, and nobody fails for a pair that was slow once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

#: A direction is slow below the norm by this ratio: as a flow of a job (`flow_ratio`), since paths differ by design.
SLOW_RATIO = 1.5
#: A round trip is slow above the norm by this ratio, and by so many seconds: switches differ by less.
SLOW_TRIP, SLOW_TRIP_S = 3.0, 0.0002
#: Part of a host's pairs that are slow, if the host is; and of an end's other pairs from which on no link is.
NEARLY_ALL, MOST_OTHERS = 0.8, 0.5
#: Slow pairs that are measured again, at most: they take a second each. Of more links no single one is at fault.
MOST_AGAIN = 12
#: Pairs of a host that have to be slow twice for it to fail, or all if it has fewer.
LEAST_TWICE = 3
SLOW_HOST, SLOW_LINK, MISSING, UNEVEN, UNMEASURED = "slow_host", "slow_link", "missing", "uneven", "unmeasured"
#: Pairs without a measurement that are named.
_MOST_NAMED = 4
#: Directions of a pair that no data passed, though small messages did.
LARGE_LOST = "small messages pass, large ones do not: compare the MTU of both ends"
#: Slow only while other pairs were measured too.
ONCE = "measured once only, so it does not fail"

Direction = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PairResult:
    """Holds what two hosts measured.

    Attributes:
        first, second: hosts, by index.
        forth, back: bytes a second from the first to the second, and back; 0 = nothing passed, -1 = not measured.
        trip_s: fastest round trip; -1 = not measured.
        problem: why something is missing; "" = nothing is.
        times: measurements that both directions have.
    """

    first: int
    second: int
    forth: float
    back: float
    trip_s: float
    problem: str = ""
    times: int = 1

    @property
    def is_measured(self) -> bool:
        """Return whether both directions were measured."""
        return min(self.forth, self.back) >= 0.0

    def better(self, other: PairResult) -> PairResult:
        """Return the better figures of two measurements: a pair is slow if it always is."""
        trips = [trip for trip in (self.trip_s, other.trip_s) if trip >= 0]
        forth, back = max(self.forth, other.forth), max(self.back, other.back)
        problem = min(self.problem, other.problem, key=len)
        times = sum(of.times for of in (self, other) if of.is_measured)
        return PairResult(self.first, self.second, forth, back, min(trips, default=-1.0), problem, times)


@dataclass(frozen=True, slots=True)
class PairFinding:
    """Holds what is wrong. `hosts`: indices of a host, or of sender and receiver; `fails`: these hosts are at fault."""

    kind: str
    hosts: tuple[int, ...]
    text: str
    fails: bool = True


@dataclass(frozen=True, slots=True)
class Norm:
    """Holds what fast pairs reach: bytes a second, and seconds of a round trip."""

    rate: float
    trip_s: float


def norm_of(pairs: Sequence[PairResult]) -> Norm:
    """Return the norm of some pairs."""
    rates = sorted(rate for pair in pairs for rate in (pair.forth, pair.back) if rate >= 0)
    trips = sorted(pair.trip_s for pair in pairs if pair.trip_s >= 0)
    rate = rates[ceil(0.75 * (len(rates) - 1))] if rates else 0.0
    return Norm(rate, trips[(len(trips) - 1) // 4] if trips else 0.0)


def pairs_again(pairs: Sequence[PairResult]) -> list[Direction]:
    """Return the pairs to be measured again, MOST_AGAIN at most: of each suspect some, and those without a result."""
    norm = norm_of(pairs)
    slow = [(pair.first, pair.second) for pair in pairs if not pair.is_measured or _slow_directions(pair, norm)]
    count = Counter(host for pair in slow for host in pair)
    of_suspect, order = Counter[int](), list[tuple[int, Direction]]()
    for pair in slow:
        suspect = max(pair, key=count.__getitem__)
        of_suspect[suspect] += 1
        order.append((of_suspect[suspect], pair))
    return [pair for _, pair in sorted(order)][:MOST_AGAIN]


def _slow_directions(pair: PairResult, norm: Norm) -> list[Direction]:
    """Return the directions of a pair that are slow; a slow round trip is of both."""
    late = pair.trip_s > max(SLOW_TRIP * norm.trip_s, norm.trip_s + SLOW_TRIP_S)
    rates = ((pair.first, pair.second), pair.forth), ((pair.second, pair.first), pair.back)
    return [ends for ends, rate in rates if rate >= 0 and (late or rate * SLOW_RATIO <= norm.rate)]


def evaluate(pairs: Sequence[PairResult], missing: Mapping[int, str], names: Sequence[str]) -> list[PairFinding]:
    """Return the findings: missing hosts, pairs without a result, slow hosts, then links these do not explain."""
    norm = norm_of(pairs)
    of_pair = {(pair.first, pair.second): pair for pair in pairs}
    slow = {ends for pair in pairs for ends in _slow_directions(pair, norm)}
    known = {ends for ends in _both_ways(of_pair) if _rate(ends, of_pair) >= 0}
    findings = [
        PairFinding(MISSING, (host,), f"{names[host]}: {reason}", False) for host, reason in sorted(missing.items())
    ]
    findings += _unmeasured([pair for pair in pairs if not pair.is_measured], names)
    suspects, count = [], len(known)
    rest, unexplained = slow, known
    while worst := _slowest_host(rest, unexplained):
        host, sends, receives = worst
        touched = {(a, b) for a, b in unexplained if (sends and a == host) or (receives and b == host)}
        suspects.append((worst, touched & rest))
        rest, unexplained = rest - touched, unexplained - touched
    unclear, hosts = set[Direction](), [host for (host, _, _), _ in suspects]
    for worst, touching in suspects:
        if any(slow.isdisjoint(((worst[0], other), (other, worst[0]))) for other in hosts if other != worst[0]):
            unclear |= touching  # not known to be slow among themselves: a rack
        else:
            findings.append(_host_finding(worst, touching, of_pair, norm, names))
    links = []
    for first, second in sorted({(min(ends), max(ends)) for ends in rest}):
        directions = [ends for ends in ((first, second), (second, first)) if ends in rest]
        if any(_slow_share(host, {first, second}, rest, unexplained) >= MOST_OTHERS for host in (first, second)):
            unclear.update(directions)
        else:
            links.append(directions)
    if len(links) > MOST_AGAIN:
        unclear.update(ends for directions in links for ends in directions)
        links = []
    findings += [_link_finding(of, of_pair[min(of[0]), max(of[0])], norm, names) for of in links]
    if unclear:
        text = f"{len(unclear)} of {count} directions are slow, and neither a host nor a link stands out"
        findings.append(PairFinding(UNEVEN, (), text, False))
    return findings


def _both_ways(pairs: Iterable[Direction]) -> set[Direction]:
    return {ends for first, second in pairs for ends in ((first, second), (second, first))}


def _unmeasured(pairs: Sequence[PairResult], names: Sequence[str]) -> list[PairFinding]:
    if not pairs:
        return []
    shown = [f"{names[of.first]} <-> {names[of.second]} ({of.problem or 'no answer'})" for of in pairs[:_MOST_NAMED]]
    more = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    return [PairFinding(UNMEASURED, (), f"not measured: {', '.join(shown)}{more}", False)]


def _slowest_host(slow: Iterable[Direction], known: Iterable[Direction]) -> tuple[int, bool, bool] | None:
    """Return the host that is slow with nearly all rest, and whether it is in sending and in receiving."""
    slow, known = set(slow), set(known)
    best: tuple[float, int, int, bool, bool] | None = None
    for host in sorted({host for ends in slow for host in ends}):
        shares = []
        for place in (0, 1):
            from_this = {ends for ends in known if ends[place] == host}
            shares.append(len(from_this & slow) / len(from_this) if len(from_this) > 1 else 0.0)
        sends, receives = (share >= NEARLY_ALL for share in shares)
        count = sum(host in ends for ends in slow)
        if (sends or receives) and (best is None or (max(shares), count) > best[:2]):
            best = max(shares), count, host, sends, receives
    return best and best[2:]


def _slow_share(host: int, pair: set[int], slow: set[Direction], known: set[Direction]) -> float:
    """Return the part of a host's other pairs that are slow."""
    rest = {frozenset(ends) for ends in known if host in ends and set(ends) != pair}
    return len({frozenset(ends) for ends in slow if host in ends} & rest) / len(rest) if rest else 0.0


def _rate(ends: Direction, pairs: Mapping[Direction, PairResult]) -> float:
    return pairs[ends].forth if ends in pairs else pairs[ends[1], ends[0]].back


def _host_finding(
    worst: tuple[int, bool, bool], slow: set[Direction], pairs: Mapping[Direction, PairResult], norm: Norm,
    names: Sequence[str],
) -> PairFinding:  # fmt: skip
    host, sends, receives = worst
    way = "sends and receives" if sends and receives else "sends" if sends else "receives"
    rates = sorted(_rate(ends, pairs) for ends in slow)
    partners = len({ends[ends[0] == host] for ends in slow})
    seen = f"{mbytes(rates[len(rates) // 2])} of {mbytes(norm.rate)} MB/s with {partners} hosts"
    twice = sum(pairs[ends].times > 1 for ends in {(min(ends), max(ends)) for ends in slow})
    fails = twice >= min(LEAST_TWICE, partners)
    reason = "this host, or its path" if fails else ONCE
    return PairFinding(SLOW_HOST, (host,), f"{names[host]}: {way} {seen}{_trip(pairs, slow, norm)}; {reason}", fails)


def _link_finding(directions: Sequence[Direction], pair: PairResult, norm: Norm, names: Sequence[str]) -> PairFinding:
    of_pair = {(pair.first, pair.second): pair}
    first, second = directions[0]
    rates = " and ".join(mbytes(_rate(ends, of_pair)) for ends in directions)
    arrow = "<->" if len(directions) > 1 else "->"
    reason = pair.problem or (LARGE_LOST if min(_rate(ends, of_pair) for ends in directions) == 0 else "")
    seen = f"{rates} of {mbytes(norm.rate)} MB/s{_trip(of_pair, directions, norm)}{reason and '; ' + reason}"
    seen += "" if pair.times > 1 else f"; {ONCE}"
    return PairFinding(SLOW_LINK, (first, second), f"{names[first]} {arrow} {names[second]}: {seen}", pair.times > 1)


def _trip(pairs: Mapping[Direction, PairResult], slow: Iterable[Direction], norm: Norm) -> str:
    """Return the round trip, where that is slow."""
    trips = [pairs[ends if ends in pairs else (ends[1], ends[0])].trip_s for ends in slow]
    longest = max(trips, default=-1.0)
    is_slow = longest > max(SLOW_TRIP * norm.trip_s, norm.trip_s + SLOW_TRIP_S)
    return f", round trip {longest * 1e6:.0f} of {norm.trip_s * 1e6:.0f} us" if is_slow else ""


def mbytes(rate: float) -> str:
    """Return a rate in MB/s."""
    return f"{rate / 1e6:,.1f}" if rate < 1e8 else f"{rate / 1e6:,.0f}"
