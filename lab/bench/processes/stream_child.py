"""Runs one Faust worker over records that are already in Kafka.

usage: ... STAGE|single RECORDS [PROFILE [SECONDS]]

STAGE is one of the product's stages (streams/worker/app.py), without the others; `single` reads one event a message.
With 0 RECORDS a stage reads its state back and ends.
Prints one JSON object: the values of self_sampling.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop

from drumline.infra.config.settings import Settings, settings
from drumline.infra.kafka.registry import codec
from drumline.lab.bench.processes.profiling import profiled
from drumline.lab.bench.processes.self_sampling import SelfSampler
from drumline.schemas.topics import JOINED_TOPICS
from drumline.streams.windows.config import WindowConfig
from drumline.streams.worker.app import WRITTEN, wirings
from drumline.streams.worker.checks.preflight import preflight
from drumline.streams.worker.faust_app import StreamWorker
from drumline.streams.worker.faust_config import faust_settings
from drumline.streams.worker.workdir import lock_working_directory

SINGLE = "bench.kernel-single.v1"
START_S, STUCK_S = 60.0, 400.0


Finish = Callable[[], Awaitable[None]]


def stage(config: Settings, name: str, wanted: int) -> tuple[Any, Callable[[], int], Finish]:
    """Return the product's worker with one of its stages: (app, function that returns the records handled so far, and
    one that writes their state). Without wanted records, partitions whose state was read back are counted.
    """
    config.stream.app_id += f"-{name}"
    wiring = next(w for w in wirings(config) if w.name == name)
    worker = StreamWorker(config, [wiring], preflight(config, JOINED_TOPICS, WRITTEN, [wiring.name]), codec(config))
    runner = worker.runners[name]
    return worker.app, lambda: worker.lag.count if wanted else len(runner.partitions), worker.checkpoints.write


def single(config: Settings) -> tuple[Any, Callable[[], int], Finish]:
    """Return a worker as Faust's documentation shows it: one event a message, counted per kernel in a hopping table."""
    import faust

    config.stream.app_id += "-single"
    partitions = preflight(config, JOINED_TOPICS, WRITTEN, ["frequency"]).partitions
    app = faust.App(**faust_settings(config, lock_working_directory(config).path, partitions))
    windows = WindowConfig.of(config.stream)
    window, hop, kept = (ns / 1e9 for ns in (windows.window_ns, windows.hop_ns, windows.window_ns + windows.grace_ns))
    table = app.Table("frequency", default=int, partitions=partitions, key_type=str).hopping(
        window, hop, expires=timedelta(seconds=kept)
    )
    seen = [0]

    async def agent(stream: Any) -> None:
        async for event in stream:
            table[event["name"]] += 1
            seen[0] += 1

    app.agent(app.topic(SINGLE, value_serializer="json"), name="bench.single")(agent)

    async def finish() -> None:
        """Do nothing: its state is written with every event."""

    return app, lambda: seen[0], finish


async def measure(
    app: Any, handled: Callable[[], int], finish: Finish, wanted: int, profile: Path | None, most_s: float
) -> dict[str, Any]:
    """Measure from the first handled record until `wanted` are handled and stored, for `most_s` at most."""
    starting = asyncio.create_task(app.start())
    until = time.monotonic() + START_S
    sampler = SelfSampler(handled, wanted)
    while not handled() and time.monotonic() < until and not app.crashed:
        await asyncio.sleep(0.005)
    until = time.monotonic() + most_s
    with profiled(profile, f"{sys.argv[1]}, {wanted} messages"):
        while handled() < wanted and time.monotonic() < until and not app.crashed:
            await asyncio.sleep(0.02)
        await finish()
        result = sampler.result()
    starting.cancel()
    return result


def main() -> None:
    """Run the worker of the command line and print its measurements."""
    which, wanted = sys.argv[1], int(sys.argv[2])
    profile = Path(sys.argv[3]) if sys.argv[3:] and sys.argv[3] else None
    most_s = float(sys.argv[4]) if sys.argv[4:] else STUCK_S
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def run() -> dict[str, Any]:
            app, handled, finish = single(settings()) if which == "single" else stage(settings(), which, wanted)
            return await measure(app, handled, finish, wanted, profile, most_s)

        print(json.dumps(runner.run(run())), flush=True)
        os._exit(0)  # nothing of it is needed again


if __name__ == "__main__":
    main()
