"""Build the configuration of a sink's consumer, in librdkafka's names."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import FETCH_BYTES, UNPACKED_BYTES, client_config
from drumline.schemas.topics import Topic

#: Bytes that end the wait of a request for records; what comes one by one is gathered until then.
GATHER_BYTES = 256 << 10


def consumer_config(settings: Settings, topics: Sequence[Topic]) -> dict[str, str | int | float | bool]:
    """Return the consumer's configuration.

    No auto-commit and no automatic offset reset: the sink decides on assignment where to start.

    A static member that returns while Kafka still remembers it gets its former partitions, whatever it subscribes to
    now. So a sink with other topics is another member.
    """
    config: dict[str, str | int | float | bool] = {
        **client_config(settings, "drumline-sink"),
        "group.id": settings.sink.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 2_000,
        "max.poll.interval.ms": 300_000,
        "queued.max.messages.kbytes": 16_384,
        "queued.min.messages": 1_000,
        # Rows take 13 times as much unpacked. With the default of 50 MB a sink behind by minutes held 300 MiB.
        "fetch.max.bytes": FETCH_BYTES,
        "fetch.message.max.bytes": FETCH_BYTES,
        "receive.message.max.bytes": UNPACKED_BYTES,
        # A request names every partition, so it costs sink and broker more than a record does: the broker some 4 ms.
        # Live rows come some 0.1 s later than with 250.
        "fetch.wait.max.ms": 500,
        "fetch.min.bytes": GATHER_BYTES,
        "isolation.level": "read_committed",
    }
    if settings.instance:
        mark = crc32(" ".join(sorted(topic.value for topic in topics)).encode())
        config["group.instance.id"] = f"{settings.sink.group}-{settings.instance}-{mark:08x}"
    return config
