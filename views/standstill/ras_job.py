"""A standing job from what NCCL's RAS printed of it. Pure.

RAS has the number of each rank's calls by function, and not which of them have ended. A rank that called less than
another of its communicator is behind; where all called as much, only a rank that RAS lost explains anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from drumline.producers.ras.report import RasCommunicator, RasRank, RasReport
from drumline.streams.hangs.snapshot import ProgressRow
from drumline.views.standstill.standing_job import StandingJob, process, progress_row

_ERRORS = {
    1: "an unhandled CUDA error",
    2: "a system error",
    3: "an internal error",
    4: "an invalid argument",
    5: "an invalid usage",
    6: "an error of a peer",
    7: "an operation of NCCL in progress",
}


#: What an answer of RAS alone leaves open.
COUNTS_ONLY = (
    "RAS counts calls, and not what has ended, nor sizes: ranks that called as much may all wait, and another "
    "operation or order in one of the last calls is not excluded. Dumps of the Flight Recorder show these."
)


def job_of_ras(report: RasReport) -> StandingJob:
    """Return the job of RAS's answer. Ranks are those of the largest communicator that a process is in."""
    job = StandingJob()
    numbers = _world_ranks(report.communicators)
    rows: dict[int, list[ProgressRow]] = {rank: [] for rank in numbers.values()}
    states: dict[int, RasRank] = {}
    silent: dict[int, str] = {}
    for position, communicator in enumerate(report.communicators):
        key = f"{communicator.name} {position}"
        job.labels[key] = f"communicator {communicator.name.partition(':')[0]}"
        job.members[key] = tuple(sorted(numbers[rank.place] for rank in _every_rank(communicator)))
        for rank, row in _rows(key, communicator):
            rows[numbers[rank.place]].append(row)
        for rank in _every_rank(communicator):
            number = numbers[rank.place]
            if rank.exited or number not in states:
                states[number] = rank
            if rank.unresponsive and not rank.exited:
                silent[number] = f"it does not answer RAS (process {rank.pid} on {rank.host})"
            job.notes += _notes(number, rank, job.labels[key])
    job.absent = {number: text for number, text in silent.items() if not states[number].exited}
    job.processes = [
        process(number, its_rows, "killed" if states[number].exited else "running", states[number].host)
        for number, its_rows in sorted(rows.items())
        if number not in job.absent
    ]
    job.notes.append(COUNTS_ONLY)
    return job


def lost_ranks(report: RasReport) -> tuple[dict[int, str], dict[int, str]]:
    """Return the ranks that RAS gave up, with their hosts, and those that do not answer it, with what is known."""
    job = job_of_ras(report)
    return {process.rank: process.host for process in job.processes if process.has_ended}, job.absent


def _every_rank(communicator: RasCommunicator) -> Iterable[RasRank]:
    return chain(communicator.ranks, communicator.missing)


def _world_ranks(communicators: Iterable[RasCommunicator]) -> dict[tuple[str, int, int], int]:
    """Return the rank of each process in the largest communicator that it is in; a number taken already goes on."""
    numbers: dict[tuple[str, int, int], int] = {}
    taken: set[int] = set()
    for communicator in sorted(communicators, key=lambda communicator: -communicator.size):
        for rank in _every_rank(communicator):
            if rank.place not in numbers:
                number = rank.rank if rank.rank not in taken else max(taken) + 1
                numbers[rank.place] = number
                taken.add(number)
    return numbers


def _rows(key: str, communicator: RasCommunicator) -> Iterable[tuple[RasRank, ProgressRow]]:
    """Return the rows of a communicator's ranks: what the least of them called has ended, unless it may be open.

    It may where a rank is lost, and where ranks called as much in all, but of other functions.
    """
    known = [rank for rank in communicator.ranks if rank.counts]
    if not known:
        return
    functions = list(dict.fromkeys(name for rank in known for name, _ in rank.counts))
    counts = {rank.place: dict(rank.counts) for rank in known}
    least = {name: min(of.get(name, 0) for of in counts.values()) for name in functions}
    ended = min(rank.called for rank in known)
    is_even = max(rank.called for rank in known) == ended
    differ = any(counts[rank.place].get(name, 0) != least[name] for rank in known for name in functions)
    lost = any(rank.exited or rank.unresponsive for rank in communicator.missing)
    if ended and is_even and (differ or lost):
        ended -= 1
    for rank in known:
        more = [name for name in functions if counts[rank.place].get(name, 0) > least[name]]
        used = [name for name in more or functions if counts[rank.place].get(name, 0)]
        operation = " or ".join(used)
        yield rank, progress_row(key, rank.rank, communicator.size, rank.called, -1, ended, call=(operation, "", 0))
    for rank in communicator.missing:
        if rank.exited:
            yield rank, progress_row(key, rank.rank, communicator.size, ended, -1, ended)


def _notes(number: int, rank: RasRank, label: str) -> Iterable[str]:
    if rank.error:
        yield f"Rank {number} reports {_ERRORS.get(rank.error, f'error {rank.error}')} in {label}."
    if rank.aborted:
        yield f"Rank {number} has aborted {label}."
    if rank.starting and not rank.aborted:
        yield f"Rank {number} is still in the set-up of {label}."
