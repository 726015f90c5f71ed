"""A full buffer must not put the worker to sleep. Both waits were seen to last up to 0.7 s of a second of work.

When an agent's buffer is full, Faust leaves its partitions out of the next fetch and asks for the others alone, for up
to a second. And aiokafka keeps one request to a broker at a time: while full partitions are left out, that is one for
partitions without news, which the broker holds back for up to 1.5 s. Either way the worker runs out of work long before
it asks for more. So both wait for a moment only: Faust's while anything is left out, aiokafka's always.
"""

from __future__ import annotations

from typing import Any

#: How long Faust may ask while partitions are left out; s. A buffer is filled again when 40% of it are left.
HELD_S = 0.01
#: How long a broker may hold a request back when it has nothing; ms.
FETCH_WAIT_MS = 50


def keep_asking(app: Any) -> None:
    """Bound both waits of `app`'s consumer. Call once, before the app starts."""
    consumer = app.consumer
    fetch, create = consumer._getmany, consumer._thread._create_consumer

    async def getmany(active_partitions: Any, timeout: float) -> Any:
        return await fetch(active_partitions, min(timeout, HELD_S) if consumer._buffered_partitions else timeout)

    def create_consumer(*arguments: Any, **options: Any) -> Any:
        made = create(*arguments, **options)
        made._fetch_max_wait_ms = FETCH_WAIT_MS
        return made

    consumer._getmany = getmany
    consumer._thread._create_consumer = create_consumer
