"""Reads what a private stack holds after a benchmark: bytes of topics and tables, and the ranks that verdicts name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import silence_librdkafka
from drumline.infra.kafka.offsets import Offsets
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import WARNING

READ_S = 30.0


def published_bytes(settings: Settings) -> Counter[str]:
    """Return topic -> bytes of its records in the broker's logs, as they are compressed there, one replica."""
    sizes: Counter[str] = Counter()
    for log in State.of(settings).root.glob("kafka/**/*-*/*.log"):
        sizes[log.parent.name.rpartition("-")[0]] += log.stat().st_size
    return sizes


def stored_bytes(settings: Settings) -> dict[str, int]:
    """Return table -> bytes of all files of its active parts."""
    client = clickhouse.connect(settings)
    parts = clickhouse.rows(
        client,
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts "
        f"WHERE active AND database = '{settings.clickhouse.database}' GROUP BY table",
    )
    client.close()
    return {str(row["table"]): int(row["bytes"]) for row in parts}


def verdict_ranks(settings: Settings) -> list[int]:
    """Return the ranks that some verdict names at warning or above, rising. Raises RuntimeError after READ_S."""
    offsets, codec, ranks = Offsets(settings), Codec(), set[int]()
    ends = offsets.ends(offsets.places([Topic.STRAGGLER]))
    left = sum(ends.values())
    places = [TopicPartition(Topic.STRAGGLER.value, int(place.rpartition(":")[2]), 0) for place in ends]
    plain: dict[str, Any] = silence_librdkafka(client_config(settings, "drumline-bench"))
    consumer = Consumer({**plain, "group.id": "drumline-bench", "enable.auto.commit": False})
    consumer.assign(places)
    try:
        while left:
            message = consumer.poll(READ_S)
            if message is None:
                raise RuntimeError(f"{left} verdicts could not be read within {READ_S:g} s")
            if message.error() is None:
                left -= 1
                columns = codec.decode(Topic.STRAGGLER, message.value()).columns
                named = columns["rank"][(columns["severity"] >= WARNING) & (columns["rank"] >= 0)]
                ranks.update(np.unique(named).tolist())
    finally:
        consumer.close()
    return sorted(ranks)
