"""Define the sink's exceptions and state which are fatal."""

from __future__ import annotations


class LostRecords(RuntimeError):
    """Fatal: Kafka removed records before they were stored, or lost stored ones. The sink never skips them silently."""


class TailLost(RuntimeError):
    """Continue with another log: Kafka lost records that are stored, and --accept-loss is given.

    `topic`, `partition`: of the log.
    """

    def __init__(self, topic: str, partition: int, text: str) -> None:
        super().__init__(text)
        self.topic, self.partition = topic, partition


class TransientKafkaError(RuntimeError):
    """Retry later: a commit or request failed and may succeed later, or from another member."""


class TopicReplaced(RuntimeError):
    """Start over: a topic was deleted and recreated while it was read; the records collected from it are discarded."""


class Fenced(RuntimeError):
    """The client is out: another sink runs under its static instance name, or it fenced itself (kafka/fencing.py)."""


class NoKnownBrokers(RuntimeError):
    """Re-create the client: it has lost every broker address and never reconnects."""


class UnreadableBatch(RuntimeError):
    """Find its end: Kafka's client cannot unpack the batch that begins at `offset`; the partition stands still."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"{topic} partition {partition}: the batch at offset {offset} cannot be unpacked")
        self.topic, self.partition, self.offset = topic, partition, offset
