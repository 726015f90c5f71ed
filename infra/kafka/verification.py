"""Check of what producers wrote against the record format: key, partition, and whether it can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import ConnectionProbe
from drumline.infra.kafka.partitioner import partition_of
from drumline.infra.kafka.tail import entries, read, without_empty
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.model import has_schema
from drumline.schemas.topics import TOPICS

#: Topics whose records name their producer.
VERIFIED = tuple(str(spec.topic) for spec in TOPICS if has_schema(spec.topic))


@dataclass(slots=True)
class ProducerAccount:
    """Counts the batches of one process in a topic, and those that break the record format.

    `process_id`: of a record that cannot be read, its key. `wrong_partition`: its key belongs on another.
    `wrong_key`: the format has another key for it. `unreadable`: no program decodes it. `example`:
    the last one of them.
    """

    topic: str
    process_id: str
    job: str = ""
    run: str = ""
    rank: int = -1
    host: str = ""
    batches: int = 0
    wrong_partition: int = 0
    wrong_key: int = 0
    unreadable: int = 0
    example: str = ""

    @property
    def keeps_format(self) -> bool:
        """Return whether all of its batches keep the record format."""
        return not (self.wrong_partition or self.wrong_key or self.unreadable)

    def as_json(self) -> dict[str, Any]:
        """Return the account as `drumline topics verify --json` prints it."""
        return asdict(self)


class Verification:
    """Checks records one after the other. `partitions`: topic -> its number of partitions."""

    def __init__(self, codec: Codec, partitions: Mapping[str, int]) -> None:
        self._codec, self._partitions = codec, partitions
        self._accounts: dict[tuple[str, str], ProducerAccount] = {}
        self._places: dict[tuple[str, bytes], int] = {}

    def accounts(self, job: str = "") -> list[ProducerAccount]:
        """Return the account of each topic and process, of one job ("" = all), in the order of their first record."""
        return [account for account in self._accounts.values() if job in ("", account.job)]

    def add(self, message: Message) -> None:
        """Check one record, or all of its parts. Retry later: RegistryUnavailable."""
        for entry in entries(self._codec, message, {}, batches=True):
            self._check(message, entry)

    def _check(self, message: Message, entry: Mapping[str, Any]) -> None:
        topic, key = str(message.topic()), message.key()
        sent = key.encode() if isinstance(key, str) else key or b""
        shown = sent.decode("utf-8", "backslashreplace")
        envelope = {} if "error" in entry or "tombstone" in entry else entry
        account = self._account(topic, str(envelope.get("process_id", "")) or shown, envelope)
        account.batches += 1
        where = f"partition {message.partition()} offset {message.offset()}"
        if "error" in entry:
            account.unreadable += 1
            account.example = f"{where}: {entry['error']['reason']}, {entry['error']['detail']}"
        place = self._place(topic, sent)
        if key is not None and place != message.partition():
            account.wrong_partition += 1
            account.example = f"{where}: key {shown} belongs on partition {place}"
        if envelope and (key is None or shown != (wanted := record_key(Batch(topic, dict(envelope), {})))):
            account.wrong_key += 1
            account.example = f"{where}: " + ("it has no key" if key is None else f"key {shown} should be {wanted}")

    def _account(self, topic: str, process_id: str, envelope: Mapping[str, Any]) -> ProducerAccount:
        account = self._accounts.setdefault((topic, process_id), ProducerAccount(topic, process_id))
        if envelope and not account.job:
            account.job, account.run, account.host = envelope["job"], envelope["run"], envelope.get("host", "")
            account.rank = envelope.get("rank", -1)
        return account

    def _place(self, topic: str, key: bytes) -> int:
        """Return the partition of a key, which many records have."""
        if (topic, key) not in self._places:
            self._places[topic, key] = partition_of(key, self._partitions[topic])
        return self._places[topic, key]


def partition_numbers(settings: Settings, topics: Collection[str]) -> dict[str, int]:
    """Return topic -> partitions of those that exist. Blocks. Raises BrokerUnreachable."""
    probe = ConnectionProbe(settings)
    listed = probe.metadata(AdminClient(probe.silence(client_config(settings, "drumline-topics")))).topics
    return {name: len(listed[name].partitions) for name in topics if name in listed and listed[name].partitions}


def newest_records(settings: Settings, topics: Iterable[str], last: int) -> Iterator[Message]:
    """Yield the `last` records of each partition of the topics; 0 = all that Kafka has. Blocks as `read` does."""
    for topic in without_empty(settings, list(topics)):
        yield from read(settings, topic, last or "beginning", follow=False)
