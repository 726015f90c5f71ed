"""Slow down a worker's reconnects while Kafka is down.

aiokafka's fetcher, group coordinator and producer retry after 0.1 s, all workers alike, and Faust passes no other value
on: 53 connections a second from one worker to a broker that is down.
"""

from __future__ import annotations

import random

#: Each worker draws its wait from this range, ms, so that workers that lost a broker together reconnect at other times.
RETRY_MS = (500, 1_000)


def slow_down_reconnects() -> None:
    """Change aiokafka's default in this process. Raises KeyError with an aiokafka that has no such argument."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    wait_ms = random.randint(*RETRY_MS)
    for client in (AIOKafkaConsumer, AIOKafkaProducer):
        defaults = client.__init__.__kwdefaults__
        if "retry_backoff_ms" not in defaults:
            raise KeyError(f"{client.__name__} takes no retry_backoff_ms")
        defaults["retry_backoff_ms"] = wait_ms
