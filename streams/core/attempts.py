"""Attempts of runs: a job that restarts under one run id begins a new attempt, and steps count from anywhere again.

An attempt is known by its processes. A process of a rank that had an older one begins an attempt, and others that start
with it belong to it. Nothing is compared between ranks but times at which processes started, to find the nearest
attempt of a rank that was not seen before. Each stage decides by what it reads, with this one logic.

Keys of the store: a|chunk|run_key, the processes of CHUNK_RANKS ranks of an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.record_table import RecordTable
from drumline.streams.core.records import (
    NO_ROWS,
    attempt_of_key,
    key,
    key_parts,
    pack_rows,
    run_key,
    split_run_key,
    unpack_rows,
)
from drumline.streams.core.state_budget import ChargedStore

#: After so much time of its own, and of the attempt, a process whose rank was not replaced belongs to a later attempt:
#: some launchers restart single ranks. Launchers that restart all have killed it by then; ns.
CARRIED_NS = 60_000_000_000
#: Starts of one process that two sources state, each by its clock of that moment, differ by less; ns.
SAME_NS = 500_000_000
#: Ranks of a stored value: a host's, as a rule.
CHUNK_RANKS = 8
_KIND = "a"


class Sighting(NamedTuple):
    """Holds what a batch tells of the process that sent it. `start_ns`: 0 = not stated. `time_ns`: of its rows."""

    rank: int
    process_id: str
    start_ns: int
    time_ns: int
    world_size: int


def lead_of(envelope: Mapping[str, Any]) -> Sighting:
    """Return what a batch of lateness tells of the newest process that it is about: the others started with it."""
    lead, start_ns = int(envelope.get("lead_rank", -1)), int(envelope.get("lead_start_ns", 0))
    rank = lead if lead >= 0 else min(envelope["rank_list"], default=0)
    return Sighting(rank, str(envelope.get("lead_process", "")), start_ns, 0, int(envelope.get("world_size", 0)))


def sightings_of(table: RecordTable) -> Iterator[Sighting]:
    """Yield what parts tell of their processes."""
    names = ("process_start_ns", "base_time_ns", "world_size")
    numbers = (table.number(name).tolist() for name in names)
    yield from map(Sighting, table.number("rank").tolist(), table.text("process_id"), *numbers)


def leads_of(table: RecordTable) -> Iterator[Sighting]:
    """Yield what parts with lateness tell of the newest process that each is about."""
    return (lead_of(batch.envelope) for batch in table.batches())


@dataclass(slots=True)
class RankProcess:
    """Describes a process of a rank.

    Attributes:
        start_ns: when it started, or the time of its first rows where its producer does not state that.
        last_ns: time of its newest rows since the restart of the worker.
        until_ns: time up to which its rows belong to this attempt, though there is a later one; 0 = there is none.
    """

    process_id: str
    start_ns: int
    last_ns: int = 0
    until_ns: int = 0


@dataclass(slots=True)
class Attempt:
    """Holds one attempt of a run.

    Attributes:
        unit: its `run_key`, by which state is kept.
        begin_ns: start of its first process, as far as it is known.
        last_ns: time of the newest rows of all its processes while it was the only one; see RankProcess.
        published_ns: the same as results have it, which does not change any more; -1 = none has it yet.
        processes: by rank.
    """

    unit: str
    begin_ns: int
    world_size: int
    published_ns: int = -1
    last_ns: int = 0
    processes: dict[int, RankProcess] = field(default_factory=dict)

    def started_ns(self) -> int:
        """Return the start that names it in results; from the first call on it stays."""
        if self.published_ns < 0:
            self.published_ns = self.begin_ns
        return self.published_ns

    def lead(self, ranks: list[int]) -> tuple[int, RankProcess]:
        """Return the newest process of some ranks, and its rank."""
        known = ((rank, self.processes[rank]) for rank in ranks if rank in self.processes)
        return max(known, key=lambda item: item[1].start_ns, default=(min(ranks), RankProcess("", 0)))


def _begin(attempt: Attempt) -> int:
    return attempt.begin_ns


class _Run:
    """Holds the attempts of one run, by their begin, and which of them each process is in."""

    __slots__ = ("attempts", "of")

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.of: dict[tuple[int, str], Attempt] = {}

    def end_earlier(self) -> None:
        """Set the time up to which processes of all attempts but the newest belong to theirs."""
        self.attempts.sort(key=_begin)
        for attempt, later in pairwise(self.attempts):
            for process in attempt.processes.values():
                newest_ns = max(process.last_ns, attempt.last_ns) or later.begin_ns  # 0: none since a restart
                process.until_ns = process.until_ns or newest_ns + CARRIED_NS

    def attempt_of(self, seen: Sighting, start_ns: int) -> Attempt | None:
        """Return the attempt of a process that was not seen before; None = it begins one."""
        for attempt in reversed(self.attempts):  # a restarted decoder is another source of the same process
            process = attempt.processes.get(seen.rank)
            if process is not None and abs(process.start_ns - start_ns) < SAME_NS:
                return attempt
        newest = self.attempts[-1]
        occupant = newest.processes.get(seen.rank)
        if occupant is not None and start_ns > occupant.start_ns:
            return None
        free = [attempt for attempt in self.attempts if seen.rank not in attempt.processes]
        nearest = min(free, key=lambda attempt: abs(attempt.begin_ns - start_ns), default=None)
        if nearest is newest and seen.start_ns and seen.world_size != newest.world_size:
            last_ns = max([newest.last_ns, *(process.last_ns for process in newest.processes.values())])
            return None if start_ns > last_ns else newest  # ranks meet before they work: it did not take part
        return nearest


class Attempts:
    """Keeps the attempts of all runs that one stage has state of. `store`: the stage's."""

    def __init__(self, store: ChargedStore) -> None:
        self._store = store
        self._runs: dict[str, _Run] = {}
        self._units: dict[str, Attempt] = {}
        for name in list(store):
            if name.startswith(_KIND + "|"):
                self._restore(name)
        for known in self._runs.values():
            known.end_earlier()
            for attempt in known.attempts:  # of one that was carried on, the later counts
                known.of |= {(rank, process.process_id): attempt for rank, process in attempt.processes.items()}

    def place(self, job: str, run: str, seen: Sighting) -> Attempt:
        """Return the attempt that a batch belongs to, a new one where it begins it."""
        name = run_key(job, run)
        known = self._runs.get(name)
        attempt = None if known is None else known.of.get((seen.rank, seen.process_id))
        if known is None or attempt is None:
            return self._join(job, run, name, seen)
        process = attempt.processes[seen.rank]
        if attempt is not known.attempts[-1] and process.until_ns:
            attempt = self._carried(known, attempt, process, seen)
        process.last_ns = max(process.last_ns, seen.time_ns)
        return attempt

    def units_of(self, table: RecordTable, sightings: Iterable[Sighting]) -> list[str]:
        """Return the unit of the attempt of each part. `sightings`: of each part."""
        of_parts = zip(table.text("job"), table.text("run"), sightings, strict=True)
        return [self.place(job, run, seen).unit for job, run, seen in of_parts]

    def units_of_ranks(self, table: RecordTable) -> list[str]:
        """Return the unit of the attempt of each part, each of one rank, or the one that all have.

        As nearly always the run has one attempt, and all processes are known: then nothing is done for each part.
        """
        runs = set(zip(table.text("job"), table.text("run"), strict=True))
        known = self._runs.get(run_key(*next(iter(runs)))) if len(runs) == 1 else None
        if known is not None and len(known.attempts) == 1:
            places = zip(table.number("rank").tolist(), table.text("process_id"), strict=True)
            if all(map(known.of.__contains__, places)):
                [attempt] = known.attempts
                attempt.last_ns = max(attempt.last_ns, int(table.number("base_time_ns").max()))
                return [attempt.unit]
        return self.units_of(table, sightings_of(table))

    def units_at(self, table: RecordTable) -> list[str]:
        """Return the unit of the attempt at the time of each part, of what names no process of a rank."""
        of_parts = zip(table.text("job"), table.text("run"), table.number("base_time_ns").tolist(), strict=True)
        attempts = ((job, run, self.at(job, run, time_ns)) for job, run, time_ns in of_parts)
        return [run_key(job, run) if attempt is None else attempt.unit for job, run, attempt in attempts]

    def at(self, job: str, run: str, time_ns: int) -> Attempt | None:
        """Return the attempt of a run at a time, of what names no process of a rank; None of an unknown run."""
        known = self._runs.get(run_key(job, run))
        if known is None:
            return None
        begun = [attempt for attempt in known.attempts if attempt.begin_ns <= time_ns]
        return begun[-1] if begun else known.attempts[0]

    def unit_of_result(self, envelope: Mapping[str, Any]) -> str:
        """Return the unit that a result is about."""
        job, run = envelope["job"], envelope["run"]
        known = self._runs.get(run_key(job, run))
        started_ns = int(envelope.get("attempt_start_ns", 0))
        named = (a.unit for a in (known.attempts if known else ()) if a.published_ns == started_ns)
        return next(named, run_key(job, run, started_ns))

    def of_unit(self, unit: str) -> Attempt:
        """Return the attempt of a unit; one whose processes are not known is known by its unit."""
        return self._units.get(unit) or Attempt(unit, attempt_of_key(unit), 0)

    def is_over(self, unit: str) -> bool:
        """Return whether a later attempt of the run has begun."""
        known = self._runs.get(run_key(*split_run_key(unit)))
        return known is not None and unit in self._units and known.attempts[-1].unit != unit

    def keep(self, units: Collection[str], in_quarantine: Collection[str]) -> None:
        """Forget the attempts of which the stage has no unit; of those in quarantine delete what is stored.

        Their processes stay known meanwhile, or they would begin an attempt out of quarantine.
        """
        for unit in self._units.keys() - set(units):
            self._delete(self._units[unit])
            if unit not in in_quarantine:
                self._forget(self._units.pop(unit))

    def _forget(self, attempt: Attempt) -> None:
        name = run_key(*split_run_key(attempt.unit))
        known = self._runs[name]
        known.attempts.remove(attempt)
        known.of = {place: other for place, other in known.of.items() if other is not attempt}
        if not known.attempts:
            del self._runs[name]

    def _delete(self, attempt: Attempt) -> None:
        self._store.job = split_run_key(attempt.unit)[0]
        for chunk in {rank // CHUNK_RANKS for rank in attempt.processes}:
            self._store.pop(key(_KIND, chunk, attempt.unit))

    def _join(self, job: str, run: str, name: str, seen: Sighting) -> Attempt:
        """Return the attempt of a process that was not seen before."""
        self._store.job = job
        start_ns = seen.start_ns or seen.time_ns
        known = self._runs.get(name)
        attempt = None if known is None else known.attempt_of(seen, start_ns)
        if self._store.is_denied or (attempt is None and self._store.is_full):
            return attempt or Attempt(run_key(job, run, start_ns), start_ns, seen.world_size)  # it is not taken in
        if known is None:
            known = self._runs[name] = _Run()
        if attempt is None:
            attempt = self._open(job, run, known, start_ns, seen.world_size)
        if seen.rank not in attempt.processes:
            attempt.processes[seen.rank] = RankProcess(seen.process_id, start_ns, seen.time_ns)
            attempt.begin_ns = min(attempt.begin_ns, start_ns)
            known.attempts.sort(key=_begin)
            attempt.world_size = max(attempt.world_size, seen.world_size)
            self._write(attempt, seen.rank)
        known.of[seen.rank, seen.process_id] = attempt
        return attempt

    def _open(self, job: str, run: str, known: _Run, start_ns: int, world_size: int) -> Attempt:
        """Begin an attempt, also one before those that are known: hosts may be late by minutes."""
        unit = run_key(job, run, start_ns)
        while unit in self._units:
            start_ns += 1
            unit = run_key(job, run, start_ns)
        attempt = self._units[unit] = Attempt(unit, start_ns, world_size)
        known.attempts.append(attempt)
        known.end_earlier()
        return attempt

    def _carried(self, known: _Run, attempt: Attempt, process: RankProcess, seen: Sighting) -> Attempt:
        """Return the attempt that a process of an earlier one belongs to by now: its rank may not have restarted."""
        at = known.attempts.index(attempt)
        for later in known.attempts[at + 1 :]:
            if seen.rank in later.processes:  # it was replaced
                break
            is_long = seen.time_ns >= max(process.until_ns, later.begin_ns + CARRIED_NS)
            if is_long and (not later.world_size or seen.rank < later.world_size):
                attempt = later
        if seen.rank not in attempt.processes:
            self._store.job = split_run_key(attempt.unit)[0]
            attempt.processes[seen.rank], known.of[seen.rank, seen.process_id] = process, attempt
            process.until_ns = 0 if attempt is known.attempts[-1] else process.until_ns
            self._write(attempt, seen.rank)
        return attempt

    def _write(self, attempt: Attempt, rank: int) -> None:
        """Store the processes of a rank and its neighbours."""
        chunk = rank // CHUNK_RANKS
        near = range(chunk * CHUNK_RANKS, (chunk + 1) * CHUNK_RANKS)
        processes = ((number, attempt.processes[number]) for number in near if number in attempt.processes)
        head = {
            "world_size": attempt.world_size,
            "ranks": {number: [process.process_id, process.start_ns] for number, process in processes},
        }
        self._store[key(_KIND, chunk, attempt.unit)] = pack_rows(-1, head, np.zeros(0, NO_ROWS))

    def _restore(self, name: str) -> None:
        unit = key_parts(name, 3)[2]
        head, (job, run) = unpack_rows(self._store[name], NO_ROWS).head, split_run_key(unit)
        self._store.job = job
        self._store.charge_stored(name)
        known = self._runs.setdefault(run_key(job, run), _Run())
        attempt = self._units.get(unit)
        if attempt is None:
            attempt = self._units[unit] = Attempt(unit, attempt_of_key(unit), head["world_size"])
            known.attempts.append(attempt)
        attempt.world_size = max(attempt.world_size, head["world_size"])
        for rank, (process_id, start_ns) in head["ranks"].items():
            attempt.processes[int(rank)] = RankProcess(process_id, start_ns)
            attempt.begin_ns = min(attempt.begin_ns, start_ns)
