"""Classify repeated batches: the same process, key and sequence, and the same content.

A process id is no secret. Whoever publishes another batch under the identity of a process must not erase the process's
batch, so a batch with other content is stored. Which of both is true cannot be known; the audit reports them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from drumline.sinks.ranges.disposition import Disposition, RangeEntry
from drumline.sinks.ranges.offset_ranges import Intervals

#: Error of a record that decodes, but is a dead letter in the intent.
KNOWN_DEAD_LETTER = "KnownDeadLetter"
#: Batch identity (process, key) -> sequences stored so far.
History = dict[tuple[str, str], Intervals]
#: Process, key, sequence.
Place = tuple[str, str, int]


@dataclass(slots=True)
class StoredBatches:
    """Holds what tells the batches apart that are stored in one place.

    `hashes`: of those with rows (see `content_hash`); 0 stands for any. `sources`: (job, run, sent_ns) of all, and once
    more with None as its time. `published_ms`: when Kafka got the last one; 0 = not stored yet.
    """

    hashes: set[int] = field(default_factory=set)
    sources: set[tuple[str, str, int | None]] = field(default_factory=set)
    published_ms: int = 0

    def add(self, content: int | None, job: str, run: str, sent_ns: int) -> None:
        """Add a batch; `content`: None if it has no rows."""
        self.sources |= {(job, run, sent_ns), (job, run, None)}
        if content is not None:
            self.hashes.add(content)

    def has(self, content: int | None, job: str, run: str, sent_ns: int, *, reports_drops: bool) -> bool:
        """Return whether a batch adds nothing.

        Rows repeat equal rows. A batch without rows repeats any other of its run, since the agent publishes one in the
        place of a batch that it lost. If it `reports_drops`, it repeats only the batch whose loss it reports: that one
        has its `sent_ns`, which nobody knows beforehand.
        """
        if content is not None:
            return 0 in self.hashes or content in self.hashes
        return (job, run, sent_ns if reports_drops else None) in self.sources


@dataclass(slots=True)
class Duplicates:
    """Classifies the batches of one partition.

    `history`: what is stored. `contents`: the stored batches of the places that are `repeated` among the collected
    records only: all of them would not fit into memory. `conflicts`: batches that are stored although another one is
    stored in their place.
    """

    history: History = field(default_factory=dict)
    contents: dict[Place, StoredBatches] = field(default_factory=dict)
    conflicts: int = 0

    def unloaded(self, entries: Iterable[RangeEntry]) -> set[tuple[str, str]]:
        """Return the identities among the entries whose history is not loaded."""
        return {place[:2] for entry in entries if (place := _place(entry)) and place[:2] not in self.history}

    def repeated(self, entries: Iterable[RangeEntry]) -> set[Place]:
        """Return the places of batches that are stored already or occur twice. History must be loaded."""
        seen, repeated = set[Place](), set[Place]()
        for entry in entries:
            if (place := _place(entry)) is not None:
                if place in seen or place[2] in self.history[place[:2]]:
                    repeated.add(place)
                seen.add(place)
        return repeated

    def classify(self, entry: RangeEntry) -> None:
        """Set the entry's disposition to `DUPLICATE` if it is one. `contents` of `repeated` must be loaded.

        Nothing is stored of an expired batch, so the same one may be stored later.
        """
        place = _place(entry)
        if place is None or entry.batch is None:
            return
        new = self.history[place[:2]].add(place[2])
        if new and place not in self.contents:
            return
        stored, envelope = self.contents.setdefault(place, StoredBatches()), entry.batch.envelope
        source = str(envelope["job"]), str(envelope["run"]), int(envelope["sent_ns"])
        content = entry.content if entry.rows else None
        if stored.has(content, *source, reports_drops=envelope["dropped_before"] > 0):
            entry.disposition, entry.repeats_ms = Disposition.DUPLICATE, stored.published_ms
        elif entry.disposition is not Disposition.EXPIRED:
            self.conflicts += bool(stored.sources)
            stored.add(content, *source)

    @staticmethod
    def unclassify(entry: RangeEntry) -> None:
        """Undo `classify` of a duplicate, which left history and contents as they were.

        A known dead letter decodes now, and its bytes are not kept.
        """
        if entry.disposition is Disposition.DUPLICATE or entry.error[0] == KNOWN_DEAD_LETTER:
            entry.error = ("", "")
            entry.disposition = Disposition.STORED if entry.rows else Disposition.EMPTY


def _place(entry: RangeEntry) -> Place | None:
    """Return where the batch counts; None where it names no process, or is dead."""
    return None if entry.disposition is Disposition.DEAD_LETTER else entry.place
