"""Progress of a rank in each of its process groups: what it called, began and ended, from its dump. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from drumline.producers.foreign.dumps.dumped_calls import COALESCED, RECEIVE, SEND, DumpedCall, RankDump


@dataclass(slots=True)
class PeerProgress:
    """Counts the sends to a peer, or the receives from it, of a dump.

    Attributes:
        call: the first open one, or the last.
        unconfirmed: those that are marked as completed, and that the watchdog has not seen end.
    """

    called: int = 0
    ended: int = 0
    call: DumpedCall | None = None
    unconfirmed: list[DumpedCall] = field(default_factory=list)


@dataclass(slots=True)
class GroupProgress:
    """Holds how far a rank is in the collectives of a process group, and in sends and receives by peer and operation.

    Attributes:
        description: of the process group.
        called, begun, ended: numbers of the last collectives.
        open_call, last_call: the first collective that has not ended, and the last that has, as far as the dump has it.
    """

    description: str
    called: int = 0
    begun: int = 0
    ended: int = 0
    open_call: DumpedCall | None = None
    last_call: DumpedCall | None = None
    peers: dict[tuple[int, str], PeerProgress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Holds how far a rank is in all of its process groups, which are known by name.

    Attributes:
        listed: process group -> its ranks, as the dump lists them.
        is_whole: the dump has all calls of the process.
        has_starts: the dump shows when operations begin on the GPU.
        newest: the last call of the process, None = it has none.
    """

    rank: int
    listed: dict[str, tuple[int, ...]]
    groups: dict[str, GroupProgress]
    is_whole: bool
    has_starts: bool
    newest: DumpedCall | None

    @property
    def first_open(self) -> DumpedCall | None:
        """Return the first collective of the process that has not ended; None without one."""
        calls = (group.open_call for group in self.groups.values() if group.open_call is not None)
        return min(calls, key=lambda call: call.record, default=None)


def progress_of(dump: RankDump) -> RankProgress:
    """Return how far a rank is."""
    by_group: dict[str, list[DumpedCall]] = defaultdict(list)
    for call in dump.calls:
        by_group[call.group.name].append(call)
    return RankProgress(
        dump.rank,
        dump.groups,
        {name: _group_progress(calls) for name, calls in by_group.items()},
        dump.is_whole,
        any(call.has_started for call in dump.calls),
        dump.calls[-1] if dump.calls else None,
    )


def _group_progress(calls: list[DumpedCall]) -> GroupProgress:
    progress = GroupProgress(next((c.group.description for c in calls if c.group.description), ""))
    collectives = _launched(call for call in calls if not call.is_point_to_point)
    if collectives:
        joined = {number: _joined(launched) for number, launched in collectives.items()}
        progress.called = max(joined)
        progress.ended = min((n - 1 for n, call in joined.items() if not call.has_ended), default=progress.called)
        started = (n for n, call in joined.items() if call.has_started or call.has_ended)
        progress.begun = max(progress.ended, max(started, default=0))
        progress.open_call, progress.last_call = joined.get(progress.ended + 1), joined.get(progress.ended)
    for launched in _launched(call for call in calls if call.is_point_to_point).values():
        for call in launched:
            if call.operation in (SEND, RECEIVE):
                peer = progress.peers.setdefault((call.peer, call.operation), PeerProgress())
                peer.called += 1
                peer.ended += call.has_ended
                if call.has_ended and not call.is_retired:
                    peer.unconfirmed.append(call)
                if peer.call is None or peer.call.has_ended:
                    peer.call = call
    return progress


def _launched(calls: Iterable[DumpedCall]) -> dict[int, list[DumpedCall]]:
    """Return the operations of each launch by its number; those that are launched together have the launch's state.

    The entry that ends such a group has no operation of its own, and is left out where there are others.
    """
    launches: dict[int, list[DumpedCall]] = defaultdict(list)
    for call in calls:
        launches[call.number].append(call)
    for number, launched in launches.items():
        marker = next((call for call in launched if call.operation == COALESCED), None)
        if marker is not None and len(launched) > 1:
            launches[number] = [
                replace(
                    call,
                    has_started=call.has_started or marker.has_started,
                    has_ended=call.has_ended or marker.has_ended,
                    is_retired=call.is_retired or marker.is_retired,
                )
                for call in launched
                if call is not marker
            ]
    return launches


def _joined(launched: list[DumpedCall]) -> DumpedCall:
    """Return the operations of one launch as one call, which has ended where all have."""
    first = launched[0]
    if len(launched) == 1:
        return first
    return replace(
        first,
        operation=f"{'+'.join(dict.fromkeys(call.operation for call in launched))}, {len(launched)} coalesced",
        has_started=any(call.has_started for call in launched),
        has_ended=all(call.has_ended for call in launched),
        sizes_in=tuple(shape for call in launched for shape in call.sizes_in),
        sizes_out=tuple(shape for call in launched for shape in call.sizes_out),
    )
