"""Sentences on the waits of a standing job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized
from itertools import groupby

from drumline.streams.hangs.named_ranks import NamedRank, Reason, Standstill
from drumline.streams.hangs.waiting import Awaited, Rendezvous
from drumline.views.report.gaps import spans
from drumline.views.standstill.standing_job import StandingJob


def ranks_text(ranks: Collection[int]) -> str:
    """Return ranks as text: "rank 2", "ranks 0, 1, 3 to 7"."""
    numbers = sorted(ranks)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {spans([(rank, rank) for rank in numbers])}"


def sentence(standstill: Standstill, main: Rendezvous | None, points: Sequence[Rendezvous], job: StandingJob) -> str:
    """Return who is waited for, in which operation, and how many wait; `main`: the wait it is about, of `points`."""
    named = standstill.named
    if main is None:
        return _without_wait(standstill, job)
    place = _place(main, job)
    waiting = [member.process.rank for member in main.waiting]
    if named and standstill.reason is Reason.MISMATCH:
        return f"Ranks called different things as number {named[0].number} of {_label(main, job)}: {_calls(named)}."
    if named and standstill.reason is Reason.DEADLOCK:
        places = ", ".join(f"rank {rank.process.rank} in {_row_place(rank, job)}" for rank in named)
        return f"{_capital(ranks_text(_numbers(named)))} wait for each other: {places}."
    if named:
        first = [rank for rank in named if rank.reason is named[0].reason and rank.row is named[0].row] or [named[0]]
        further = sorted(set(_numbers(named)) - set(_numbers(first)))
        more = f" The job waits for {ranks_text(further)} too." if further else ""
        all_waiting = {member.process.rank for point in points for member in point.waiting} - set(_numbers(named))
        if all_waiting - set(waiting):
            more += f" In all, {len(all_waiting)} ranks wait."
        text = _peer_verdict(first, main, job) if main.row.peer >= 0 else _verdict(first, place, waiting)
        return f"{text}{more}"
    return _unnamed(standstill, main, place, waiting, job)


def wait_sentence(point: Rendezvous, job: StandingJob) -> str:
    """Return who waits in what, and for which rank."""
    waiting = [member.process.rank for member in point.waiting]
    text = f"{_capital(ranks_text(waiting))} {_verb(waiting, 'wait')} in {_place(point, job)}"
    blocking = [member.process.rank for member in point.blocking]
    missing = sorted(set(job.members[point.communicator]) & set(job.absent))
    unknown = f"nothing is known of {ranks_text(missing)}" if missing else "no file lists its other ranks"
    reason = {
        Awaited.CALL: f" for {ranks_text(blocking)}, which {_verb(blocking, 'have')} not called it",
        Awaited.START: f" for the GPU of {ranks_text(blocking)}, which has not begun it",
        Awaited.END: ", which does not end",
        Awaited.UNKNOWN: f"; {unknown}",
    }
    return f"{text}{reason[point.awaited] if blocking or point.awaited in (Awaited.END, Awaited.UNKNOWN) else ''}."


def _verdict(named: Sequence[NamedRank], place: str, waiting: Collection[int]) -> str:
    ranks = _numbers(named)
    subject, further = _capital(ranks_text(ranks)), sorted(set(waiting) - set(ranks))
    number = "1 rank waits" if len(further) == 1 else f"{len(further)} ranks wait"
    wait = f", in which {number}: {spans([(rank, rank) for rank in further])}" if further else ""
    match named[0].reason:
        case Reason.NOT_CALLED:
            return f"{subject} {_verb(ranks, 'have')} not called {place}{wait}."
        case Reason.NOT_STARTED:
            return (
                f"The GPU of {ranks_text(ranks)} has not begun {place}, which was called{wait.replace(',', ' and', 1)}."
            )
        case Reason.NOT_ENDED:
            return f"{subject} began {place} and {_verb(ranks, 'do')} not end it."
        case Reason.ENDED:
            return f"{subject} {_verb(ranks, 'have')} ended, without a part in {place}{wait}."
        case _:
            return f"{subject} {_verb(ranks, 'have')} stopped before the end of {place}{wait}."


def _peer_verdict(named: Sequence[NamedRank], main: Rendezvous, job: StandingJob) -> str:
    """Return who has not called the other end of a send or receive."""
    subject = _capital(ranks_text(_numbers(named)))
    rank, label = main.waiting[0].process.rank, _label(main, job)
    if named[0].reason is not Reason.NOT_CALLED:
        return f"{subject} {_verb(named, 'have')} ended or stopped, and rank {rank} waits in {_place(main, job)}."
    if main.row.operation == "Send":
        return f"{subject} has not called the receive of what rank {rank} sends to it in {label}."
    return f"{subject} has not called the send of what rank {rank} receives from it in {label}."


def _unnamed(standstill: Standstill, main: Rendezvous, place: str, waiting: Collection[int], job: StandingJob) -> str:
    missing = sorted(set(job.members[main.communicator]) & set(job.absent))
    if missing:
        reasons = {job.absent[rank] for rank in missing}
        reason = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        return (
            f"Nothing is known of {ranks_text(missing)}{reason}, and {ranks_text(waiting)} {_verb(waiting, 'wait')} in "
            f"{place}: the job waits for {ranks_text(missing)}, or the operation does not end."
        )
    if main.communicator in job.incomplete:
        return f"{_capital(ranks_text(waiting))} {_verb(waiting, 'wait')} in {place}; no file lists its other ranks."
    if main.awaited in (Awaited.CALL, Awaited.START):
        return wait_sentence(main, job)
    if len(waiting) < len(main.members):
        ended = len(main.members) - len(waiting)
        return (
            f"{_capital(ranks_text(waiting))} {_verb(waiting, 'do')} not end {place}, which {ended} of its ranks ended."
        )
    everyone = f"All {len(waiting)} ranks"
    if standstill.reason is Reason.NOT_STARTED:
        return f"{everyone} called {place}, and no GPU has begun it."
    if standstill.reason is Reason.NOT_ENDED:
        return f"{everyone} began {place}, and none ended it."
    return f"{everyone} called {place}, and none ended it; whether their GPUs began it is not recorded."


def _without_wait(standstill: Standstill, job: StandingJob) -> str:
    if job.absent:
        reasons = {*job.absent.values()}
        reason = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        return f"No rank waits in an operation; nothing is known of {ranks_text(job.absent)}{reason}."
    if exited := [process.rank for process in job.processes if process.has_ended]:
        return f"{_capital(ranks_text(exited))} {_verb(exited, 'have')} ended, and no rank waits in an operation."
    return "No rank waits in an operation that the files show."


def _calls(named: Sequence[NamedRank]) -> str:
    """Return who called what, equal calls once."""

    def call(rank: NamedRank) -> tuple[str, str, int, int]:
        return rank.row.operation, rank.row.datatype, rank.row.elements, rank.waiting

    parts = []
    for (operation, datatype, elements, count), same in groupby(sorted(named, key=call), key=call):
        ranks = _numbers([*same])
        size = f" of {elements:,} {datatype}" if elements and datatype else ""
        further = f" and {count - len(ranks)} more" if count > len(ranks) else ""
        parts.append((count, f"{ranks_text(ranks)}{further}: {operation}{size}"))
    return "; ".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _numbers(named: Sequence[NamedRank]) -> list[int]:
    return sorted({rank.process.rank for rank in named})


def _label(point: Rendezvous, job: StandingJob) -> str:
    return job.labels[point.communicator]


def _place(point: Rendezvous, job: StandingJob) -> str:
    """Return the operation of a wait with its number and process group: "all_reduce 17 of dp (process group 3)"."""
    call = job.call_in(point.waiting[0].process.rank, point.row)
    if point.row.peer >= 0:
        peer = job.members[point.communicator][point.row.peer]
        way = "to" if point.row.operation == "Send" else "from"
        return f"a {point.row.operation.lower()} {way} rank {peer} in {_label(point, job)}"
    operation = call.operation if call is not None else point.row.operation or "collective"
    return f"{operation}{f' {point.number}' if point.number else ''} of {_label(point, job)}"


def _row_place(rank: NamedRank, job: StandingJob) -> str:
    row = rank.row
    if row.peer >= 0 and row.comm_rank == job.members[row.communicator].index(rank.process.rank):
        peer, way = job.members[row.communicator][row.peer], "to" if row.operation == "Send" else "from"
        missing = "received" if row.operation == "Send" else "sent"
        return (
            f"a {row.operation.lower()} {way} rank {peer}, which has not {missing}, in {job.labels[row.communicator]}"
        )
    number = f" {rank.number}" if rank.number else ""
    return f"{rank.row.operation.lower()}{number} of {job.labels[rank.row.communicator]}"


def _verb(ranks: Sized, plural: str) -> str:
    """Return a verb's form for one rank or several."""
    singular = {"have": "has", "wait": "waits", "do": "does"}
    return singular[plural] if len(ranks) == 1 else plural


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
