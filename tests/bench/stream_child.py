"""One Faust worker in a process of its own, over records that are in Kafka already: `... STAGE|single RECORDS`.

STAGE: one of the product's stages (streams/app.py), alone. `single`: one event a message. Prints one JSON object: CPU
and wall seconds between the first record and the last, resident bytes and records left over time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import uvloop

from drumline.infra.registry_client import codec
from drumline.infra.settings import Settings, settings
from drumline.streams.app import READ, WRITTEN, wirings
from drumline.streams.faust_settings import faust_settings
from drumline.streams.preflight import preflight
from drumline.streams.worker import StreamWorker

SINGLE = "bench.kernel-single.v1"
START_S, STUCK_S = 60.0, 400.0


def stage(config: Settings, name: str) -> tuple[Any, Callable[[], int]]:
    """The product's worker with one of its stages: (app, records handled so far)."""
    config.stream.app_id = f"bench-{name}"
    wiring = next(w for w in wirings(config) if w.name == name)
    worker = StreamWorker(config, [wiring], preflight(config, READ, WRITTEN, [wiring.name]), codec(config))
    return worker.app, lambda: worker.lag.count


def single(config: Settings) -> tuple[Any, Callable[[], int]]:
    """Faust as its documentation shows it: one event a message, counted per kernel in a hopping table."""
    import faust

    config.stream.app_id = "bench-single"
    partitions = preflight(config, READ, WRITTEN, ["frequency"])
    app = faust.App(**faust_settings(config, partitions))
    window, hop = config.stream.window_s, config.stream.hop_s
    table = app.Table("frequency", default=int, partitions=partitions, key_type=str).hopping(
        window, hop, expires=timedelta(seconds=window + config.stream.grace_s)
    )
    seen = [0]

    async def agent(stream: Any) -> None:
        async for event in stream:
            table[event["name"]] += 1
            seen[0] += 1

    app.agent(app.topic(SINGLE, value_serializer="json"), name="bench.single")(agent)
    return app, lambda: seen[0]


async def measure(app: Any, handled: Callable[[], int], wanted: int) -> dict[str, Any]:
    """From the first handled record until `wanted` are."""
    starting = asyncio.create_task(app.start())
    until, me = time.monotonic() + START_S, psutil.Process()
    while not handled() and time.monotonic() < until and not app.crashed:
        await asyncio.sleep(0.005)
    before, began, cpu = handled(), time.perf_counter(), time.process_time()
    until, memory, left = time.monotonic() + STUCK_S, [], []
    while handled() < wanted and time.monotonic() < until and not app.crashed:
        memory.append(me.memory_info().rss)
        left.append(wanted - handled())
        await asyncio.sleep(0.05)
    result = {
        "records": handled() - before,
        "handled": handled(),
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "memory": memory,
        "left": left,
    }
    starting.cancel()
    return result


def main() -> None:
    which, wanted = sys.argv[1], int(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def run() -> dict[str, Any]:
            app, handled = single(settings()) if which == "single" else stage(settings(), which)
            return await measure(app, handled, wanted)

        print(json.dumps(runner.run(run())), flush=True)
        os._exit(0)  # nothing of it is needed again


if __name__ == "__main__":
    main()
