"""Compare the offsets of partitions in Kafka with the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator

from drumline.schemas.topics import COMPACTED_TOPICS
from drumline.sinks.audit.kafka_side import KafkaFacts, PartitionFacts
from drumline.sinks.audit.queries import Queries
from drumline.sinks.audit.report import AuditReport, Finding, TopicAccount
from drumline.sinks.kafka.record_times import BEYOND
from drumline.sinks.ranges.stored_tail import kafka_topic_id, log_spans, losses

#: The most missing offsets that are looked up in Kafka.
LOOKED_UP = 100_000


def check_tails(report: AuditReport, facts: list[PartitionFacts], kafka: KafkaFacts, queries: Queries) -> None:
    """Find the partitions whose last stored record Kafka does not have, or another in its place."""
    places = {(place.topic, kafka_topic_id(place.topic_id), place.partition): place for place in facts}
    stored = {
        (place.topic, place.partition): tail
        for key, tail in queries.tails(places).items()
        if tail.offset >= (place := places[key]).low and losses(tail.topic_id) >= losses(place.topic_id)
    }
    times = kafka.times({place: tail.offset for place, tail in stored.items()})
    for (topic, partition), tail in stored.items():
        time_ms = times.get((topic, partition), tail.published_ms)
        if time_ms == tail.published_ms:
            continue
        low, end = kafka.bounds(topic, partition)
        if low <= tail.offset:  # retention has not removed it meanwhile
            text = f"the ledger ends at {tail.offset + 1}, Kafka's log at {end}"
            text += "" if time_ms == BEYOND else f" with another record at {tail.offset}"
            text += ": Kafka lost records and gives their offsets to new ones, which are not stored"
            report.findings.append(Finding("tail_lost", f"{topic}[{partition}]", text))


def check_partition(
    report: AuditReport, account: TopicAccount, place: PartitionFacts, first: int, kafka: KafkaFacts, queries: Queries
) -> None:
    """Check that what left Kafka or is committed there is in the ledger. `first`: the first offset it should have."""
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
    """Return how many records are committed and in Kafka, but not in the ledger, and the first offset of them.

    Kafka keeps those of a compacted topic for longer than the ledger: they have expired there.
    """
    lost, first_lost, looked_up = 0, -1, 0
    if place.committed <= place.low:
        return lost, first_lost
    for first, last in _gaps(place, queries, place.low, place.committed - 1):
        count = last - first + 1
        if looked_up + count <= LOOKED_UP:  # offsets without a record are no loss
            looked_up += count
            count = kafka.existing(place, first, last, queries.ledger_since_ms(time.time()))
        lost += count
        first_lost = first if count and first_lost < 0 else first_lost
    return lost, first_lost


def _removed(place: PartitionFacts, first: int, queries: Queries) -> int:
    """Return how many records left Kafka (retention, deletion) before they were stored.

    These are offsets below Kafka's first that the ledger should have from `first` on: its first entry, or what was
    committed.
    """
    if place.topic in COMPACTED_TOPICS or not 0 <= first < place.low:
        return 0
    return sum(end - start + 1 for start, end in _gaps(place, queries, first, place.low - 1))


def _gaps(place: PartitionFacts, queries: Queries, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets of first..last that are not in the ledger, as intervals."""
    for name, start, end in log_spans(place.topic_id, first, last):
        yield from queries.covered(place.topic, name, place.partition, start, end).gaps(start, end)
