"""Bound two waits in fetching that leave the worker idle while a buffer is full, each for up to 0.7 s of a second.

When an agent's buffer is full, Faust leaves its partitions out of the next fetch and requests only the others, for up
to a second. And aiokafka keeps one request to a broker at a time: while full partitions are left out, that request is
for partitions without news, which the broker holds back for up to 1.5 s. Either way the worker runs out of work long
before it requests more. So both wait only briefly: Faust while partitions are left out, aiokafka always.
"""

from __future__ import annotations

from typing import Any

#: How long a request of Faust may wait while partitions are left out; s. A buffer is refilled when 40% of it are left.
HELD_S = 0.01
#: How long a broker may hold a request back when it has nothing; ms.
FETCH_WAIT_MS = 50


def limit_fetch_delay(app: Any) -> None:
    """Bound both waits of `app`'s consumer. Call once, before the app starts."""
    consumer = app.consumer
    fetch, create = consumer._getmany, consumer._thread._create_consumer

    async def getmany(active_partitions: Any, timeout: float) -> Any:
        return await fetch(active_partitions, min(timeout, HELD_S) if consumer._buffered_partitions else timeout)

    def create_consumer(*arguments: Any, **options: Any) -> Any:
        client = create(*arguments, **options)
        client._fetch_max_wait_ms = FETCH_WAIT_MS
        return client

    consumer._getmany = getmany
    consumer._thread._create_consumer = create_consumer
