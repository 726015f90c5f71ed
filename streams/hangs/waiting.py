"""Waiting of ranks in their communicators: what they wait in, and for whom. Pure.

Ranks of a communicator meet in each of its collectives, in the order of their calls. So the first that has not ended
everywhere is the one that ranks wait in: for those that have not called it, or else for those whose GPU has not begun
it. If all have, the operation itself does not end.

The n-th send of a rank to another meets the n-th receive of that one from it. Where NCCL does not measure, a receive
whose send is not called waits, by these numbers. A send whose receive is not called may wait, or lie in a buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from drumline.streams.hangs.snapshot import ProcessProgress, ProgressRow

SEND, RECEIVE = "Send", "Recv"
#: Communicator of the row of a GPU, where CUPTI alone records: called 1 and ended 0 = it runs something that does
#: not end, 0 and 0 = nothing, 1 and 1 = other work.
UNNAMED = ""
_ANSWERS = {SEND: RECEIVE, RECEIVE: SEND}


class Awaited(Enum):
    """Classifies what ranks wait for.

    `CALL`: others call. `START`: others' GPUs begin. `END`: the operation ends. `UNKNOWN`: a rank whose progress is not
    known.
    """

    CALL = "call"
    START = "start"
    END = "end"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Participant:
    """Holds a process and its row of a communicator. `ended`: collectives that have ended, as far as that is known."""

    process: ProcessProgress
    row: ProgressRow
    ended: int


@dataclass(frozen=True)
class Rendezvous:
    """Describes a collective, a send or a receive that ranks wait in.

    Attributes:
        number: of the collective, from 1; 0 = not known.
        row: of a rank that waits.
        members: those that are known.
        waiting: members that called it.
        blocking: members that the others wait for.
        awaited: what they wait for.
        missing: members that are not known.
        sure: the members do wait; otherwise they may.
    """

    communicator: str
    number: int
    row: ProgressRow
    members: Sequence[Participant]
    waiting: Sequence[Participant]
    blocking: Sequence[Participant]
    awaited: Awaited
    missing: int = 0
    sure: bool = True

    @property
    def explains(self) -> bool:
        """Return whether it explains anything: an operation, or who has nothing for its GPU."""
        return self.communicator != UNNAMED or bool(self.blocking)


def find_rendezvous(processes: Sequence[ProcessProgress]) -> list[Rendezvous]:
    """Return what ranks wait in: at most one collective of a communicator, and sends and receives by rank."""
    communicators: dict[str, dict[int, Participant]] = {}
    by_peer: dict[tuple[str, int], dict[tuple[int, str], Participant]] = {}
    for process in sorted(processes, key=lambda process: process.seen_ns):  # of two of one rank the newer one counts
        for row in process.progress():
            member = Participant(process, row, row.ended)
            if row.peer < 0:
                place = row.comm_rank if row.comm_rank >= 0 else -1 - process.rank  # CUPTI does not show it
                communicators.setdefault(row.communicator, {})[place] = member
                by_peer[row.communicator, row.comm_rank] = {}
            else:
                by_peer.setdefault((row.communicator, row.comm_rank), {})[row.peer, row.operation] = member
    result = []
    for communicator, ranks in communicators.items():
        if point := _collective(communicator, [ranks[number] for number in sorted(ranks)]):
            result.append(point)
    for (communicator, comm_rank), members in by_peer.items():
        for (number, operation), member in members.items():
            peer, answers = communicators.get(communicator, {}).get(number), by_peer.get((communicator, number), {})
            answer = answers.get((comm_rank, _ANSWERS.get(operation, operation)))
            if not member.process.has_ended and (point := _peer_wait(member, peer, answer, answers.values())):
                result.append(point)
    return result


def _collective(communicator: str, reported: Sequence[Participant]) -> Rendezvous | None:
    members = _with_known_ends(reported)
    waiting = [m for m in members if m.row.called > m.ended and not m.process.has_ended]
    if not waiting:
        return None
    number = min(m.ended for m in waiting) + 1 if all(m.row.exact for m in members) else 0
    if number:
        waiting = [m for m in waiting if m.ended < number]
        blocking = [m for m in members if m.row.called < number or (m.process.has_ended and m.ended < number)]
    else:  # what is not numbered is only known to be open or not
        blocking = [m for m in members if m.row.called == m.ended or m.process.has_ended]
    row, missing = waiting[0].row, max(m.row.ranks for m in members) - len(members)
    awaited = Awaited.CALL
    halted = [m for m in blocking if m.process.state != "running"]
    if communicator == UNNAMED and len(blocking) - len(halted) > len(waiting):  # these may wait for it on their hosts
        blocking, awaited = halted or blocking, Awaited.CALL if halted else Awaited.UNKNOWN
    elif not blocking and (missing > 0 or communicator == UNNAMED):
        awaited = Awaited.UNKNOWN
    elif not blocking:
        running = [m for m in waiting if m.row.begun > m.ended]
        blocking = [m for m in waiting if m.row.begun <= m.ended] if running else []
        awaited = Awaited.START if blocking else Awaited.END
        waiting = running or waiting
    number = 0 if communicator == UNNAMED else number
    return Rendezvous(communicator, number, row, members, waiting, blocking, awaited, missing)


def _with_known_ends(members: Sequence[Participant]) -> Sequence[Participant]:
    """Return the members, none of which has ended what another one has not called.

    Where NCCL did not measure the last collectives (`begun` < `ended`), they are only assumed to have ended. Counts
    that are not exact cannot be compared.
    """
    if not all(member.row.exact for member in members):
        return members
    called = min(member.row.called for member in members)
    return [
        replace(member, ended=min(member.ended, called)) if 0 <= member.row.begun < member.row.ended else member
        for member in members
    ]


def _peer_wait(
    member: Participant, peer: Participant | None, answer: Participant | None, all_of_peer: Collection[Participant]
) -> Rendezvous | None:
    """Return what a rank waits in, of its sends to a peer or its receives from it.

    `answer`: the peer's receives or sends of the rank; `all_of_peer`: of all ranks. A peer that publishes those that
    have ended too, as NCCL did not measure some, and none of these, has called none, if they are exact.
    """
    row, waiting = member.row, [member]
    is_open = row.called > row.ended
    if not is_open and row.begun == row.ended:
        return None
    unknown = Rendezvous(row.communicator, 0, row, waiting, waiting, [], Awaited.UNKNOWN, 1)
    if peer is None:
        return unknown if is_open else None
    is_known = answer is not None or all(other.row.exact for other in all_of_peer)  # else it may lack a row
    if not is_known and not (is_open and peer.process.has_ended):
        return unknown if is_open else None
    is_answered = answer is not None and answer.row.called > answer.row.ended
    if row.exact and peer.row.exact and (answer is None or answer.row.exact):
        called = answer.row.called if answer is not None else 0
        is_answered |= called > row.ended
        if not is_open:  # they are only assumed to have ended
            is_counted = answer is not None or any(other.row.called == other.row.ended for other in all_of_peer)
            if called >= row.called or not is_counted:
                return None
    elif not is_open:
        return None
    if is_answered and not peer.process.has_ended:
        return Rendezvous(row.communicator, 0, row, [member, peer], waiting, [], Awaited.END)
    is_sure = is_open or row.operation == RECEIVE
    return Rendezvous(row.communicator, 0, row, [member, peer], waiting, [peer], Awaited.CALL, sure=is_sure)
