"""Audit: check that each Kafka record is accounted for once, each published row stored once, each window complete.

The audit reads Kafka and ClickHouse. It trusts neither the sink nor the ledger: counts come from the tables themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from drumline.schemas.topics import KEPT_TOPICS, Topic
from drumline.sinks.audit.kafka_side import KafkaFacts
from drumline.sinks.audit.partitions import check_partition, check_tails
from drumline.sinks.audit.queries import Queries
from drumline.sinks.audit.report import AuditReport, Finding, TopicAccount
from drumline.sinks.audit.rollups import ROLLUPS, Rollup
from drumline.sinks.ranges.stored_tail import kafka_topic_id
from drumline.sinks.tables.tables import TABLES, table

WINDOWS = (
    (Topic.KERNEL, Topic.KERNEL_FREQUENCY, "launches"),
    (Topic.MEMCPY, Topic.MEMCPY_BANDWIDTH, "copies"),
)


def audit(kafka: KafkaFacts, queries: Queries) -> AuditReport:
    """Run all checks for the job and run of `queries`.

    Retry later: KafkaUnreachable, TransientError. Fatal: PermanentError. After any of them there is no result.
    """
    report = AuditReport()
    facts = kafka.partitions(t.topic.value for t in TABLES)
    check_tails(report, facts, kafka, queries)
    entries, kept = queries.records(), queries.kept()
    report.kept = list(kept.values())
    expired = queries.expired_rows()
    if not queries.has_ledger_rows():
        near = queries.nearest_job()
        hint = f"; did you mean {near}?" if near and near != queries.job else ""
        text = queries.forgotten() or f"the ledger has no record of it{hint}"
        report.findings.append(Finding("unknown", _scope(queries), text))
    for stored in TABLES:
        account = TopicAccount(stored.topic.value, rows_expired=expired.get(stored.topic.value, 0))
        report.topics.append(account)
        ledger_rows = [row for row in entries if row["topic"] == account.topic]
        _records(report, account, ledger_rows)
        firsts: dict[tuple[str, int], int] = {}
        for row in ledger_rows:
            log = kafka_topic_id(row["topic_id"]), int(row["partition"])
            firsts[log] = min(firsts.get(log, int(row["first"])), int(row["first"]))
        for place in (place for place in facts if place.topic == account.topic):
            first = firsts.get((kafka_topic_id(place.topic_id), place.partition), place.commit_offset)
            check_partition(report, account, place, first, kafka, queries)
        if not ledger_rows and not queries.any_rows(stored):
            continue  # nothing was ever stored of it
        _rows(report, account, queries, stored.topic)
        if not stored.upsert:
            _sequences(report, queries, stored.topic, kept)
    report.dropped = queries.dropped()
    for raw, windows, amount in WINDOWS:
        _windows(report, queries, raw, windows, amount, kept)
    for rollup in ROLLUPS:
        _rollup(report, queries, rollup)
    return report


def _scope(queries: Queries) -> str:
    """Return the job and run that are audited, "" = all."""
    return " ".join(f"{label} {name}" for label, name in (("job", queries.job), ("run", queries.run)) if name)


def _records(report: AuditReport, account: TopicAccount, ledger_rows: list[dict[str, Any]]) -> None:
    for row in ledger_rows:
        for name in ("records", "stored", "empty", "duplicate", "fenced", "expired", "forgotten", "dead"):
            setattr(account, name, getattr(account, name) + int(row[name]))
        if row["entries"] != row["records"]:
            where = f"{row['topic']}[{row['partition']}]"
            text = f"{row['entries'] - row['records']} records are in the ledger more than once"
            report.findings.append(Finding("doubled", where, text))


def _rows(report: AuditReport, account: TopicAccount, queries: Queries, topic: Topic) -> None:
    stored = table(topic)
    if stored.upsert:
        newest = queries.newest_rows(stored)
        where = f"{stored.target} {_scope(queries)}".strip()  # what is acknowledged of one job hides no other's
        account.rows_stored = account.rows_published = int(newest["newest"])
        account.rows_expired += int(newest["expired_rows"])
        for kind, field_, text in (
            ("lost", "missing", "newest records left no row"),
            ("rows_differ", "unknown", "records have rows but are not in the ledger as stored"),
        ):
            if newest[field_]:
                report.findings.append(Finding(kind, where, f"{newest[field_]} {text}"))
        if wrong := queries.wrongly_fenced(stored):
            text = f"{wrong} results are fenced, or not fenced, against the epochs of their source"
            report.findings.append(Finding("rows_differ", stored.target, text))
        if sources := queries.fenced_sources(stored):
            text = f"the newest results of {', '.join(sources[:3])} are all fenced: a higher epoch came before them"
            report.findings.append(Finding("rows_differ", stored.target, text))
        return
    totals = queries.stored_rows(stored)
    account.rows_published, account.rows_stored = int(totals["published"]), int(totals["kept"])
    account.rows_expired += int(totals["expired_rows"])
    if totals["bad"]:
        examples = "; ".join(f"{place} offset {offset}: {want} published, {have} stored"
                             for place, offset, want, have in totals["examples"])  # fmt: skip
        kind = "doubled" if totals["more"] == totals["bad"] else "rows_differ"
        report.findings.append(Finding(kind, stored.name, f"{totals['bad']} records with wrong rows: {examples}"))


def _sequences(report: AuditReport, queries: Queries, topic: Topic, kept: Collection[str]) -> None:
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
        if topic in KEPT_TOPICS and row["process_id"] in kept:
            missing = 0  # they stay on the host until they are asked for
        if missing <= 0:
            continue
        if unreadable is None:
            unreadable = queries.unreadable(table(topic))
        # A dead letter that does not decode has an unknown sequence. It belongs to the same key, and may be one of many
        # batches where agents join them.
        excused = min(missing, unreadable.get(row["key"], 0))
        unreadable[row["key"]] = unreadable.get(row["key"], 0) - excused
        if missing > excused:
            text = f"{missing - excused} of {row['length']} batches are missing"
            text += f" (besides {excused} that may be in dead letters which do not decode)" if excused else ""
            report.findings.append(Finding("sequence_gap", where, text))


def _windows(
    report: AuditReport, queries: Queries, raw: Topic, windows: Topic, amount: str, kept: Collection[str]
) -> None:
    processes = queries.windows(table(raw), table(windows), amount)
    if not queries.any_rows(table(windows)):
        return  # no stream worker has ever written windows
    for row in processes:
        if row["process_id"] in kept:
            continue  # its host has counted all of its rows, and published few of them
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
