"""The ranks that a standing job waits for, and the reason. Pure.

Ranks and rendezvous are nodes of a graph: a rank waits in its rendezvous, a rendezvous waits for the ranks that block
it. Who blocks and waits for nobody is named; who waits is not. A rendezvous that nobody blocks does not end by itself:
its ranks called different things, or a GPU or link does not finish. If all who block wait too, they wait for each
other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from drumline.streams.hangs.snapshot import ProcessProgress, ProgressRow
from drumline.streams.hangs.waiting import UNNAMED, Awaited, Participant, Rendezvous, find_rendezvous

#: Operations whose ranks may have different numbers of elements.
_UNEVEN = ("AllGatherV",)


class Reason(StrEnum):
    """Reasons of gpu.hang.v1, the most telling first."""

    ENDED = "gone"
    STOPPED = "stopped"
    MISMATCH = "mismatch"
    DEADLOCK = "deadlock"
    NOT_CALLED = "not_called"
    NOT_STARTED = "not_started"
    NOT_ENDED = "not_ended"
    INSUFFICIENT = "insufficient_data"
    NO_OPERATION = "no_operation"
    SILENT = "silent"


@dataclass(frozen=True)
class NamedRank:
    """Holds a rank that is named, and the operation that it is about: `row` is one that waits in it, or its own."""

    process: ProcessProgress
    reason: Reason
    row: ProgressRow
    number: int
    waiting: int

    @property
    def weight(self) -> tuple[bool, int]:
        """Return what counts more of two: a known operation, and how many wait in it."""
        return self.row.communicator != UNNAMED, self.waiting


class StalledLink(NamedTuple):
    """Names a connection that delivers nothing: the rank that sends over it and the one that receives, with hosts."""

    sender: int
    host: str
    receiver: int
    to_host: str


@dataclass(frozen=True)
class Standstill:
    """Explains a standstill.

    Attributes:
        reason: of the job.
        named: ranks, each once.
        row, number, waiting: the operation that most ranks wait in, its number, and how many do; None = none do.
        known, ranks: of the ranks of its communicator, those whose progress is known, and all.
        places: rank and host of those that meet in it, if they are on two hosts, or two ranks.
        notes: what else is known, sentences.
        links: sender and receiver, with their hosts, between which nothing is delivered.
    """

    reason: Reason
    named: tuple[NamedRank, ...] = ()
    row: ProgressRow | None = None
    number: int = 0
    waiting: int = 0
    known: int = 0
    ranks: int = 0
    places: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    links: tuple[StalledLink, ...] = ()


#: id of a process -> rendezvous that it waits in.
_Joined = Mapping[int, Sequence[Rendezvous]]


def explain(processes: Sequence[ProcessProgress]) -> Standstill:
    """Return why a job stands still. `processes`: those whose newest progress is known, ended ones too."""
    points = find_rendezvous(processes)
    if not any(point.explains for point in points):
        is_unknown = points or any(map(_works, processes))
        return Standstill(Reason.INSUFFICIENT if is_unknown else Reason.NO_OPERATION)
    joined, named = _named(points)
    sure = [point for point in points if point.sure]
    if not named and sure != points and (certain := _named(sure))[1]:  # who sent may have gone on
        points, (joined, named) = sure, certain
    known = [point for point in points if point.communicator != UNNAMED]  # a GPU's row shows no order of calls
    if not named and all(point.awaited in (Awaited.CALL, Awaited.START) for point in known):
        named = next(filter(None, (_circle(point, joined) for point in known)), {})
    order = list(Reason)
    ordered = tuple(sorted(named.values(), key=lambda rank: (order.index(rank.reason), rank.process.rank)))
    reason = ordered[0].reason if ordered else _reason(points)
    about = [p for p in points if p.explains and (not ordered or p.communicator == ordered[0].row.communicator)]
    wanted = Awaited.UNKNOWN if reason is Reason.INSUFFICIENT else Awaited.END
    point = max(about, key=lambda p: (p.awaited is wanted and not ordered, p.communicator != UNNAMED, len(p.waiting)))
    waiting, members = len(point.waiting), len(point.members)
    places = tuple(sorted((member.process.rank, member.process.host) for member in point.members))
    is_pair = point.missing <= 0 and (len(places) == 2 or len({host for _, host in places}) == 2)
    return Standstill(
        reason, ordered, point.row, point.number, waiting, members, members + max(0, point.missing),
        places if is_pair else (),
    )  # fmt: skip


def with_stalled_links(
    explanation: Standstill, pairs: Sequence[tuple[int, int]], processes: Iterable[ProcessProgress]
) -> Standstill:
    """Return an explanation with the pairs of ranks between which nothing is delivered.

    They are the reason where no rank can be named, and where one that does not end is at an end of such a link: others
    have ended once the kernel had their data. Without an operation that ranks stand in, a job may compute.
    """
    if not pairs or explanation.row is None:
        return explanation
    hosts = {process.rank: process.host for process in processes}
    links = tuple(StalledLink(a, hosts.get(a, ""), b, hosts.get(b, "")) for a, b in pairs)
    ends = {rank for pair in pairs for rank in pair}
    named = tuple(
        rank for rank in explanation.named if rank.reason is not Reason.NOT_ENDED or rank.process.rank not in ends
    )
    reason = named[0].reason if named else explanation.reason
    return replace(explanation, named=named, links=links, reason=reason)


def _works(process: ProcessProgress) -> bool:
    """Return whether CUPTI shows that the process's GPU runs other things than NCCL's."""
    return any(row.communicator == UNNAMED and row.called == row.ended > 0 for row in process.progress())


def _named(points: Sequence[Rendezvous]) -> tuple[_Joined, dict[int, NamedRank]]:
    """Return who waits in which rendezvous, and the ranks that are waited for and wait for nobody."""
    joined: dict[int, list[Rendezvous]] = defaultdict(list)
    for point in points:
        for member in point.waiting:
            joined[id(member.process)].append(point)
    named: dict[int, NamedRank] = {}
    for point in points:
        for candidate in _attributed(point, joined):
            kept = named.get(id(candidate.process))
            if kept is None or candidate.weight > kept.weight:
                named[id(candidate.process)] = candidate
    return joined, named


def _attributed(point: Rendezvous, joined: _Joined) -> list[NamedRank]:
    """Return the ranks that a rendezvous waits for and that wait for nobody; of one that does not end, who differ."""
    if point.awaited is Awaited.END:
        return _different(point)
    if point.awaited is Awaited.UNKNOWN:  # whoever else is missing, these differ
        return [rank for rank in _different(point) if rank.reason is not Reason.NOT_ENDED]
    reason = Reason.NOT_CALLED if point.awaited is Awaited.CALL else Reason.NOT_STARTED
    return [
        NamedRank(m.process, _state(m) or reason, point.row, point.number, len(point.waiting))
        for m in point.blocking
        if m.process.has_ended or all(other is point for other in joined.get(id(m.process), ()))
    ]


def _state(member: Participant) -> Reason | None:
    if member.process.has_ended:
        return Reason.ENDED
    return Reason.STOPPED if member.process.state == "stopped" else None


def _different(point: Rendezvous) -> list[NamedRank]:
    """Return the ranks of a rendezvous that all have called and that does not end, where some differ from others."""
    count, members, number = len(point.waiting), point.members, point.number
    if stopped := [m for m in members if _state(m) is Reason.STOPPED]:
        return [NamedRank(m.process, Reason.STOPPED, point.row, number, count) for m in stopped]
    if not number:
        return []
    calls = {id(m): call for m in members if (call := _call(m.row, number))}
    if not all(datatype for _, datatype, _ in calls.values()):  # CUPTI has no types and no numbers of elements
        calls = {member: (operation, "", 0) for member, (operation, _, _) in calls.items()}
    counts = Counter(calls.values())
    if len(counts) > 1:
        common = max(counts, key=lambda call: counts[call])
        different = [m for m in members if calls.get(id(m), common) != common]
        different.append(min((m for m in members if calls.get(id(m)) == common), key=lambda m: m.process.rank))
        return [
            NamedRank(m.process, Reason.MISMATCH, _row_of(m.row, number), number, counts[calls[id(m)]])
            for m in different
        ]
    late = [m for m in members if m.row.ended < number]
    if len(late) == len(members) or all(m.row.begun <= m.row.ended for m in late):
        return []
    return [NamedRank(m.process, Reason.NOT_ENDED, point.row, number, count) for m in late]


def _call(row: ProgressRow, number: int) -> tuple[str, str, int] | None:
    """Return operation, type and size of what a rank called under a number; None = not known any more."""
    if row.ended not in (number - 1, number):
        return None
    called = _row_of(row, number)
    return called.operation, called.datatype, 0 if called.operation in _UNEVEN else called.elements


def _row_of(row: ProgressRow, number: int) -> ProgressRow:
    """Return the row with what the rank called under a number: its open operation, or the one before."""
    if row.ended != number or row.called == row.ended:
        return row
    return row._replace(
        operation=row.last_operation, datatype=row.last_datatype, elements=row.last_elements, bytes=0
    )  # fmt: skip


def _circle(point: Rendezvous, joined: _Joined) -> dict[int, NamedRank]:
    """Return ranks that wait for each other, found from a rendezvous on: each waits, in its operation, for the next.

    None where it leads to ranks of which only the GPU is known to wait.
    """
    path: list[tuple[Participant, Rendezvous]] = []
    places: dict[int, int] = {}
    member = point.waiting[0]
    while id(member.process) not in places:
        places[id(member.process)] = len(path)
        path.append((member, point))
        onward = ((m, other) for m in point.blocking for other in joined.get(id(m.process), ()) if other is not point)
        step = next((pair for pair in onward if pair[1].communicator != UNNAMED), None)
        if step is None:
            return {}
        member, point = step
    return {
        id(m.process): NamedRank(m.process, Reason.DEADLOCK, point.row, point.number, len(point.waiting))
        for m, point in path[places[id(member.process)] :]
    }


def _reason(points: Sequence[Rendezvous]) -> Reason:
    """Return the reason where no rank can be named."""
    ending = [point for point in points if point.awaited is Awaited.END]
    is_unknown = any(m.row.begun < 0 for point in ending for m in point.waiting)
    if is_unknown or any(point.awaited is Awaited.UNKNOWN for point in points):
        return Reason.INSUFFICIENT
    if any(m.row.begun > m.row.ended for point in ending for m in point.waiting):
        return Reason.NOT_ENDED
    return Reason.NOT_STARTED if ending else Reason.INSUFFICIENT
