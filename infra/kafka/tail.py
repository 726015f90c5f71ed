"""Reading of a topic as rows, without joining a group or committing."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # stubs do not export them

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import acl_error
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import TIMEOUT_S, BrokerUnreachable, ConnectionProbe, to_error
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, Received
from drumline.schemas.envelope import IDENTITY
from drumline.schemas.errors import BadRecord
from drumline.schemas.model import has_schema, model

#: Never joined: librdkafka requires a name, and queries its coordinator.
GROUP = "drumline-tail"
#: librdkafka's logical offset of the n-th record before the end is this minus n.
_OFFSET_TAIL = -2000
_STARTS = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}


class NoSuchTopic(LookupError):
    """The broker does not have the topic."""


def without_empty(settings: Settings, topics: Collection[str]) -> list[str]:
    """Return the topics without those that are known to be empty, by one request for all. Blocks.

    A topic of which the broker does not answer stays: `read` has the reason. Raises BrokerUnreachable.
    """
    probe = ConnectionProbe(settings)
    admin = AdminClient(probe.silence(client_config(settings, "drumline-tail")))
    listed = probe.metadata(admin).topics
    partitions = [
        TopicPartition(name, number) for name in topics if name in listed for number in listed[name].partitions
    ]
    ends = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=TIMEOUT_S) if partitions else {}
        ends.append({place: future.exception() or future.result().offset for place, future in futures.items()})
    filled = {place.topic for place in partitions if ends[0][place] != ends[1][place]}  # errors are never equal
    return [name for name in topics if name in filled or name not in {place.topic for place in partitions}]


def read(
    settings: Settings, topic: str, start: Literal["beginning", "end"] | int, follow: bool, timeout_s: float = TIMEOUT_S
) -> Iterator[Message]:
    """Yield the records of all partitions; without `follow`, up to each partition's end at the start. Blocks.

    `start`: a number is that of each partition's last records.

    Raises BrokerUnreachable, KafkaAccessDenied, NoSuchTopic, KafkaException.
    """
    config = client_config(settings, "drumline-tail") | {
        "group.id": GROUP,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
    }
    probe = ConnectionProbe(settings, timeout_s)
    consumer = Consumer(probe.silence(config))
    try:
        listed = probe.metadata(consumer, topic).topics[topic]
        if listed.error is not None and listed.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise acl_error(settings, [("READ", "topic", topic)])
        if listed.error is not None or not listed.partitions:
            raise NoSuchTopic(f"no topic {topic} at {settings.bootstrap}; `drumline topics apply` creates drumline's")
        offset = _OFFSET_TAIL - start if isinstance(start, int) else _STARTS[start]
        consumer.assign([TopicPartition(topic, number, offset) for number in listed.partitions])
        open_ends, last_answer = set(listed.partitions), time.monotonic()
        while follow or open_ends:
            message = consumer.poll(0.5)
            fault = message.error() if message is not None else None
            if message is None or (fault is not None and fault.retriable()):
                if not follow and time.monotonic() - last_answer > timeout_s:
                    raise BrokerUnreachable(f"Kafka at {settings.bootstrap} went silent in the middle of {topic}")
                continue
            if fault is None:
                if follow or message.partition() in open_ends:
                    yield message
            elif fault.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise to_error(settings, KafkaException(fault), f"Read on topic {topic} or group {GROUP}")
            last_answer = time.monotonic()
    finally:
        consumer.close()


def entries(
    codec: Codec, message: Message, where: dict[str, str], *, batches: bool = False
) -> Iterable[dict[str, Any]]:
    """Return the printable entries of a record: its rows, or with `batches` its envelope; place and row number first.

    `where`: envelope fields that must have these values. Bad records, dead letters and internal records have one entry,
    without their bytes. A record with parts has the entries of all of them.
    """
    place = {"_partition": message.partition(), "_offset": message.offset()}
    topic, value = str(message.topic()), message.value()
    headers = dict(message.headers() or [])
    if not has_schema(topic):
        shown = {name: _text(value) for name, value in headers.items()}
        return [{**place, "bytes": len(value or b""), "headers": shown}]
    if value is None:
        return [{**place, "tombstone": True}]
    received = Received(value, message.timestamp()[1], message.key(), headers.items())
    try:
        record = codec.open(topic, received)
        values = codec.values(topic, record)
    except BadRecord as bad:
        return [_bad(place, bad)]
    out: list[dict[str, Any]] = []
    for number, part in enumerate(values, 1):
        of_part = place if record.record is None else {**place, "_part": number}
        try:
            batch = codec.decode_part(topic, part, record)
        except BadRecord as bad:
            out.append(_bad(of_part, bad))
        else:
            out += _of_batch(batch, of_part, where, batches)
    return out


def _bad(place: dict[str, Any], bad: BadRecord) -> dict[str, Any]:
    return {**place, "error": {"reason": bad.reason, "field": bad.field, "detail": bad.detail}}


def _of_batch(batch: Batch, place: dict[str, Any], where: dict[str, str], batches: bool) -> Iterable[dict[str, Any]]:
    if any(batch.envelope[name] != wanted for name, wanted in where.items()):
        return []
    if batches:
        return [{**place, **batch.envelope}]
    return ({**place, "_row": number, **row} for number, row in enumerate(to_rows(batch)))


def to_rows(batch: Batch, identity: Sequence[str] = IDENTITY) -> list[dict[str, Any]]:
    """Return the batch as one dict a row; slow, for people and scripts.

    A row has the `identity` fields, the topic's own envelope fields (window, communicator, ...), then the columns as
    Python numbers, dictionary columns as text. A topic without columns gives one row: its envelope.
    """
    record = model(batch.topic)
    topic_fields = [name for name in record.topic_fields if name in record.envelope and name not in record.dictionaries]
    identity_fields = [name for name in identity if name in record.envelope]
    shared = {name: batch.envelope[name] for name in (*identity_fields, *topic_fields)}
    if not record.columns:
        return [copy.deepcopy(shared)]
    names = [column.name for column in record.columns]
    values = [
        (batch.strings(c.name, c.dictionary) if c.dictionary else batch.columns[c.name]).tolist()
        for c in record.columns
    ]
    return [{**copy.deepcopy(shared), **dict(zip(names, row, strict=True))} for row in zip(*values, strict=True)]


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def jsonable(value: Any) -> Any:
    """Return `value` with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: jsonable(item) for name, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, list) else value
