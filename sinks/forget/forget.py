"""Delete one job's data: what there is of it, in which order it goes, and what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.sinks.forget.job_records import ForgettableRecords
from drumline.sinks.forget.stored_rows import ForgettableRows, StoredJob

#: Times that rows are deleted: a sink may store some while it runs.
PASSES = 3


class NotStored(RuntimeError):
    """Records wait in Kafka that may be the job's: the sinks have to store them before they can be deleted."""


@dataclass(slots=True)
class Forgotten:
    """States what there was of a job, what became of it, and what is left.

    `stored`: by replica. `keys`: of compacted topics, and of state, by kind. `deleted`: records deleted from topics.
    `left`: records that stay in a topic until its retention. `state_left`: a stream worker has yet to forget it.
    """

    job: str
    stored: dict[str, StoredJob]
    keys: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    state_left: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether nothing of the job was there."""
        return not any(stored.rows or stored.records for stored in self.stored.values()) and not any(self.keys.values())

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that the job ran on, as far as the ledgers know."""
        return sorted({host for stored in self.stored.values() for host in stored.hosts})

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "job": self.job,
            "rows": {name: dict(stored.rows) for name, stored in self.stored.items()},
            "records": {name: dict(stored.records) for name, stored in self.stored.items()},
            "keys": self.keys,
            "records_deleted": self.deleted,
            "records_left_until_retention": self.left,
            "state_left": self.state_left,
            "hosts": self.hosts,
        }


class Forgetting:
    """Finds and deletes one job. Every method blocks for long on large tables.

    `tables`, `replicas`: by replica. `job_of_key`: the job of a state key of stream workers. Raises as
    ForgettableRecords and ForgettableRows.
    """

    def __init__(
        self,
        job: str,
        tables: Mapping[str, ForgettableRows],
        replicas: Mapping[str, Settings],
        topics: ForgettableRecords,
        job_of_key: Callable[[str], str],
    ) -> None:
        self._job, self._tables, self._replicas, self._topics = job, tables, replicas, topics
        self._job_of_key = job_of_key

    def find(self) -> Forgotten:
        """Return what there is, and change nothing."""
        job = Forgotten(self._job, {name: tables.find() for name, tables in self._tables.items()})
        job.keys = {
            "processes": len({key for tables in self._tables.values() for key in tables.process_keys()}),
            "state": self._topics.state_keys(self._job, self._job_of_key),
        }
        return job

    def delete(self, by: str, timeout_s: float) -> Forgotten:
        """Delete the job, and return what was deleted. `by`: who wants it. Raises NotStored, before anything is.

        Whatever interrupts it, a repetition goes on where it was: the ledger, by which Kafka's records are known, comes
        last but for these.
        """
        ends = self._topics.ends()
        for name, settings in self._replicas.items():
            if behind := self._topics.wait_stored(ends, settings.sink.group, timeout_s):
                raise NotStored(
                    f"the sinks of {name} have not stored {len(behind)} partitions to their ends, {behind[0]} first: "
                    "records of the job may wait there; start `drumline sink` and repeat this"
                )
        job = self.find()
        if not job.is_empty:
            for name, tables in self._tables.items():
                tables.record(by, job.stored[name], job.keys)
            self._topics.delete_keys({key for tables in self._tables.values() for key in tables.process_keys()})
            job.state_left = not self._topics.forget_state(self._job, timeout_s)
            for tables in self._tables.values():
                self._delete_rows(tables)
        self._delete_records(job)
        return job

    def _delete_rows(self, tables: ForgettableRows) -> None:
        for _ in range(PASSES):
            now = tables.find()
            tables.delete(now.rows)
            if now.records:
                tables.scrub_ledger()
            if not now.rows and not now.records:
                return

    def _delete_records(self, job: Forgotten) -> None:
        """Delete from Kafka what readers have read, and only forgotten jobs have before it."""
        facts, read_to = self._topics.readable(self._replicas.values())
        lows = {f"{fact.topic}:{fact.partition}": fact.low for fact in facts}
        ids = {fact.topic: fact.topic_id.partition("~")[0] for fact in facts}
        until: dict[str, int] = {}
        deleted: Counter[str] = Counter()
        left: Counter[str] = Counter()

        def note(place: str, low: int, offset: int, behind: int) -> None:
            topic = place.rpartition(":")[0]
            left[topic] += behind
            if offset > low:
                until[place], deleted[topic] = offset, deleted[topic] + offset - low

        of_replicas = [tables.only_forgotten(ids, lows) for tables in self._tables.values()]
        for place in sorted(set.intersection(*(set(places) for places in of_replicas))):
            offset, behind = min(places[place] for places in of_replicas)
            unread = max(0, offset - read_to[place])
            note(place, lows[place], offset - unread, behind + unread)
        for topic in self._topics.with_dead_letters():
            are_forgotten = next(iter(self._tables.values())).are_forgotten
            for place, dead_letters in self._topics.dead_letters(topic, are_forgotten).items():
                note(place, *dead_letters)
        self._topics.delete_before(until)
        job.deleted, job.left = dict(deleted), {topic: number for topic, number in left.items() if number}
