"""Bound two waits in fetching, have the broker gather what comes one by one, and notice its end.

When an agent's buffer is full, Faust leaves its partitions out of the next fetch and requests only the others, for up
to a second. And aiokafka keeps one request to a broker at a time: while full partitions are left out, that request is
for partitions without news, which the broker holds back for up to 1.5 s. Either way the worker runs out of work long
before it requests more, for up to 0.7 s of a second. So both wait only briefly while partitions are left out.

A request names every partition, and costs worker and broker more than a record does. Records come evenly, some dozens
a second of a small job, and each would be requested by itself. So a request for all partitions is held back until some
have come: nobody notices it beside the seconds for which agents join records.

Both fetch in tasks that may end for ever without a visible error: Faust's where it is cancelled outside a rebalance,
aiokafka's where it fails, for Faust takes the records without its check for that. The same goes for aiokafka's
membership in the group. Such a worker would hold its partitions and read nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

#: How long a request of Faust may wait while partitions are left out; s. A buffer is refilled when 40% of it are left.
HELD_S = 0.01
#: How long a broker may hold a request back, ms, and the bytes that end it: while partitions are left out, and else. A
#: worker without records makes two requests a second then, of some 4 ms of its CPU.
LEFT_OUT_MS, LEFT_OUT_BYTES = 50, 1
GATHER_MS, GATHER_BYTES = 500, 128 << 10


def limit_fetch_delay(app: Any) -> None:
    """Bound both waits of `app`'s consumer, and gather records. Call once, before the app starts."""
    consumer = app.consumer
    fetch, create = consumer._getmany, consumer._thread._create_consumer

    async def getmany(active_partitions: Any, timeout: float) -> Any:
        left_out = consumer._buffered_partitions
        client = consumer._thread._consumer
        if client is not None and client._fetcher is not None:
            client._fetcher._fetch_max_wait_ms = LEFT_OUT_MS if left_out else GATHER_MS
            client._fetcher._fetch_min_bytes = LEFT_OUT_BYTES if left_out else GATHER_BYTES
        return await fetch(active_partitions, min(timeout, HELD_S) if left_out else timeout)

    def create_consumer(*arguments: Any, **options: Any) -> Any:
        client = create(*arguments, **options)
        client._fetch_max_wait_ms = LEFT_OUT_MS  # of its first request, whose answer has the ends of the partitions
        return client

    consumer._getmany = getmany
    consumer._thread._create_consumer = create_consumer


def end_of_fetching(app: Any) -> str:
    """Return why `app` will fetch nothing any more, "" while it may. Called by the event loop's thread."""
    client = app.consumer._thread._consumer
    if app.should_stop or client is None or client._fetcher is None or client._coordinator is None:  # not started yet
        return ""
    if app._fetcher._shutdown.is_set():
        return "Faust's fetcher has ended"
    for task in (client._fetcher.error_future, client._coordinator._coordination_task):
        if task.done():
            return f"a task of aiokafka has ended: {task.get_coro().__name__}, {_error(task)!r}"
    return ""


def _error(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
