"""Audit: check that each Kafka record is accounted for once, each published row stored once, each window complete.

The audit reads Kafka and ClickHouse. It trusts neither the sink nor the ledger: counts come from the tables themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.schemas.topics import TOPICS, Topic
from drumline.sinks.audit.kafka_side import KafkaFacts, PartitionFacts
from drumline.sinks.audit.queries import Queries
from drumline.sinks.audit.rollups import ROLLUPS, Rollup
from drumline.sinks.tables.tables import TABLES, table

#: The most missing offsets that are looked up in Kafka.
LOOKED_UP = 100_000
#: Compaction removes records by design: the newest of each key stays.
COMPACTED = frozenset(spec.topic.value for spec in TOPICS if "compact" in spec.cleanup)
WINDOWS = (
    (Topic.KERNEL, Topic.KERNEL_FREQUENCY, "launches"),
    (Topic.MEMCPY, Topic.MEMCPY_BANDWIDTH, "copies"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """States one fault that the audit found.

    `kind`: lost, doubled, conflict, rows_differ, sequence_gap, windows_differ, rollup_differs, not_drained,
    windows_open, unknown. The last three mean "not yet" or "not in this ledger", the others "wrong". `where`: topic,
    partition, table or process.
    """

    kind: str
    where: str
    text: str


@dataclass(slots=True)
class TopicAccount:
    """Counts the records of one topic by disposition, over all incarnations in the ledger.

    `rows_published`: as the ledger has them; `rows_stored`: as the table has them; `rows_expired`: removed by
    retention.
    """

    topic: str
    records: int = 0
    stored: int = 0
    empty: int = 0
    duplicate: int = 0
    dead: int = 0  # glossary: key of the JSON report
    waiting: int = 0
    rows_published: int = 0
    rows_stored: int = 0
    rows_expired: int = 0


@dataclass(slots=True)
class AuditReport:
    """Holds the result of `drumline audit`.

    `rollups`: rollup -> the rows that it counts. `dropped`: rows lost before publication, per topic and run.
    """

    topics: list[TopicAccount] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    rollups: dict[str, int] = field(default_factory=dict)  # rows that they count

    @property
    def clean(self) -> bool:
        """Return True if there are no findings."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return the report as `drumline audit --json` prints it."""
        return {
            "clean": self.clean,
            "findings": [asdict(finding) for finding in self.findings],
            "topics": [asdict(account) for account in self.topics],
            "dropped_before_publication": self.dropped,
            "windows": self.windows,
            "rollups": self.rollups,
        }


def audit(kafka: KafkaFacts, queries: Queries) -> AuditReport:
    """Run all checks for the job and run of `queries`.

    Retry later: KafkaUnreachable, TransientError. Fatal: PermanentError. After any of them there is no result.
    """
    report = AuditReport()
    facts = kafka.partitions(t.topic.value for t in TABLES)
    entries = queries.records()
    if not queries.has_ledger_rows():
        where = " ".join(f"{label} {name}" for label, name in (("job", queries.job), ("run", queries.run)) if name)
        report.findings.append(Finding("unknown", where, "the ledger has no record of it"))
    for stored in TABLES:
        account = TopicAccount(stored.topic.value)
        report.topics.append(account)
        ledger_rows = [row for row in entries if row["topic"] == account.topic]
        _records(report, account, ledger_rows)
        firsts = {(row["topic_id"], int(row["partition"])): int(row["first"]) for row in ledger_rows}
        for place in (place for place in facts if place.topic == account.topic):
            first = firsts.get((place.topic_id, place.partition), place.commit_offset)
            _partition(report, account, place, first, kafka, queries)
        _rows(report, account, queries, stored.topic)
        if not stored.upsert:
            _sequences(report, queries, stored.topic)
    report.dropped = queries.dropped()
    for raw, windows, amount in WINDOWS:
        _windows(report, queries, raw, windows, amount)
    for rollup in ROLLUPS:
        _rollup(report, queries, rollup)
    return report


def _records(report: AuditReport, account: TopicAccount, ledger_rows: list[dict[str, Any]]) -> None:
    for row in ledger_rows:
        for name in ("records", "stored", "empty", "duplicate", "dead"):
            setattr(account, name, getattr(account, name) + int(row[name]))
        if row["entries"] != row["records"]:
            where = f"{row['topic']}[{row['partition']}]"
            text = f"{row['entries'] - row['records']} records are in the ledger more than once"
            report.findings.append(Finding("doubled", where, text))


def _partition(
    report: AuditReport, account: TopicAccount, place: PartitionFacts, first: int, kafka: KafkaFacts, queries: Queries
) -> None:
    where = f"{place.topic}[{place.partition}]"
    if place.waiting:
        account.waiting += place.waiting
        text = f"{place.waiting} records wait to be stored"
        text += " (a range has a committed intent)" if place.pending else ""
        report.findings.append(Finding("not_drained", where, text))
    if removed := _removed(place, first, queries):
        text = f"Kafka removed {removed} records before they were stored"
        report.findings.append(Finding("lost", where, text))
    lost, first_lost = _missing(place, kafka, queries)
    if lost:
        text = f"{lost} records were committed as stored but are not in the ledger, from offset {first_lost}"
        report.findings.append(Finding("lost", where, text))


def _missing(place: PartitionFacts, kafka: KafkaFacts, queries: Queries) -> tuple[int, int]:
    """Return how many records are committed and in Kafka, but not in the ledger, and the first offset of them."""
    lost, first_lost, looked_up = 0, -1, 0
    if place.committed <= place.low:
        return lost, first_lost
    have = queries.covered(place.topic, place.topic_id, place.partition, place.low, place.committed - 1)
    for first, last in have.gaps(place.low, place.committed - 1):
        count = last - first + 1
        if looked_up + count <= LOOKED_UP:  # offsets without a record are no loss
            looked_up += count
            count = kafka.existing(place, first, last)
        lost += count
        first_lost = first if count and first_lost < 0 else first_lost
    return lost, first_lost


def _removed(place: PartitionFacts, first: int, queries: Queries) -> int:
    """Return how many records left Kafka (retention, deletion) before they were stored.

    These are offsets below Kafka's first that the ledger should have from `first` on: its first entry, or what was
    committed.
    """
    if place.topic in COMPACTED or not 0 <= first < place.low:
        return 0
    have = queries.covered(place.topic, place.topic_id, place.partition, first, place.low - 1)
    return sum(end - start + 1 for start, end in have.gaps(first, place.low - 1))


def _rows(report: AuditReport, account: TopicAccount, queries: Queries, topic: Topic) -> None:
    stored = table(topic)
    if stored.upsert:
        newest = queries.newest_rows(stored)
        account.rows_stored = account.rows_published = int(newest["newest"])
        for kind, field_, text in (
            ("lost", "missing", "newest records left no row"),
            ("rows_differ", "unknown", "records have rows but are not in the ledger as stored"),
        ):
            if newest[field_]:
                report.findings.append(Finding(kind, stored.target, f"{newest[field_]} {text}"))
        return
    totals = queries.stored_rows(stored)
    account.rows_published, account.rows_stored = int(totals["published"]), int(totals["kept"])
    account.rows_expired = int(totals["expired_rows"])
    if totals["bad"]:
        examples = "; ".join(f"{place} offset {offset}: {want} published, {have} stored"
                             for place, offset, want, have in totals["examples"])  # fmt: skip
        kind = "doubled" if totals["more"] == totals["bad"] else "rows_differ"
        report.findings.append(Finding(kind, stored.name, f"{totals['bad']} records with wrong rows: {examples}"))


def _sequences(report: AuditReport, queries: Queries, topic: Topic) -> None:
    unreadable: dict[str, int] | None = None
    for row in queries.sequences(table(topic)):
        where = f"{topic.value} process {row['process_id']} key {row['key']}"
        if row["batches"] != row["contents"]:
            text = f"{row['batches'] - row['contents']} batches are stored twice"
            report.findings.append(Finding("doubled", where, text))
        if row["contents"] != row["sequences"]:
            text = f"{row['contents'] - row['sequences']} sequences are stored with different contents"
            report.findings.append(Finding("conflict", where, f"{text}; two producers use one process id and key"))
        if row["unlike"]:
            text = f"{row['unlike']} duplicates differ from what is stored in their place"
            report.findings.append(Finding("lost", where, text))
        if row["mentioned"] != row["known"]:
            text = f"{row['mentioned'] - row['known']} batches are known from duplicates only: the original is missing"
            report.findings.append(Finding("lost", where, text))
        missing = int(row["length"]) - int(row["known"])
        if missing <= 0:
            continue
        if unreadable is None:
            unreadable = queries.unreadable(table(topic))
        # A dead letter that does not decode has an unknown sequence. It belongs to the same key.
        excused = min(missing, unreadable.get(row["key"], 0))
        unreadable[row["key"]] = unreadable.get(row["key"], 0) - excused
        if missing > excused:
            text = f"{missing - excused} of {row['length']} batches are missing"
            text += f" (besides {excused} dead letters that do not decode)" if excused else ""
            report.findings.append(Finding("sequence_gap", where, text))


def _windows(report: AuditReport, queries: Queries, raw: Topic, windows: Topic, amount: str) -> None:
    processes = queries.windows(table(raw), table(windows), amount)
    if not queries.any_rows(table(windows)):
        return  # no stream worker has ever written windows
    for row in processes:
        row["topic"] = windows.value
        report.windows.append(row)
        where = f"{windows.value} process {row['process_id']}"
        more = int(row["in_windows"]) + int(row["late_rows"]) - int(row["closed"])
        if not 0 <= more <= int(row["dead_rows"]):
            text = (
                f"{row['closed']} rows lie in closed windows, the windows count {row['in_windows']} "
                f"and {row['late_rows']} were late"
            )
            report.findings.append(Finding("windows_differ", where, text))
        if row["raw_rows"] > row["closed"]:
            text = f"{row['raw_rows'] - row['closed']} rows lie in windows that are not closed yet"
            report.findings.append(Finding("windows_open", where, text))


def _rollup(report: AuditReport, queries: Queries, rollup: Rollup) -> None:
    compared = queries.rollups(rollup)
    report.rollups[rollup.name] = sum(int(row["counted"]) for row in compared)
    for row in compared:
        if row["wrong"]:
            least, most = row["least"], row["most"]
            rows = f"{least}" if least == most else f"{least} to {most}"
            text = f"counts {row['it_counts']} rows of {row['wrong']} {rollup.by}s where the ledger has {rows}"
            report.findings.append(
                Finding("rollup_differs", f"{rollup.name} job {row['of_job']} run {row['of_run']}", text)
            )
