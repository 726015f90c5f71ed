"""How often a worker knocks while Kafka is away.

aiokafka's fetcher, group coordinator and producer try again after 0.1 s, all workers alike, and Faust hands no other
value through: 53 connections a second from one worker to a broker that is not there.
"""

from __future__ import annotations

import random

#: A worker draws its own wait from this range; ms. Drawn, so that workers that lost a broker together come back apart.
RETRY_MS = (500, 1_000)


def be_patient() -> None:
    """Change aiokafka's default in this process. Raises KeyError with an aiokafka that has no such argument."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    wait_ms = random.randint(*RETRY_MS)
    for client in (AIOKafkaConsumer, AIOKafkaProducer):
        defaults = client.__init__.__kwdefaults__
        if "retry_backoff_ms" not in defaults:
            raise KeyError(f"{client.__name__} takes no retry_backoff_ms")
        defaults["retry_backoff_ms"] = wait_ms
