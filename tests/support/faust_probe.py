"""A worker with the smallest possible stage, run as a child process by test_faust_on_kafka.py.

It sums the rows of gpu.kernel.v1 per process and sends the running sum as a gpu.kernel-frequency.v1 record. With any
argument its state is written by checkpoints.
"""

import asyncio
import json
import logging
import os
import signal
import sys

from aiokafka.consumer.fetcher import Fetcher

from drumline.infra.config.settings import settings
from drumline.infra.telemetry.metrics import STREAM_FENCED
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.worker.checks.preflight import preflight
from drumline.streams.worker.faust_app import StreamWorker, Wiring
from drumline.streams.worker.faust_patches.fetch import end_of_fetching
from drumline.streams.worker.partition_store import CheckpointOrder


class Summing:
    def __init__(self, store):
        self.store, self.incidents, self.failed = store, [], {}

    def apply(self, table, offsets, now_ns):
        parts = zip(table.batches(), offsets.tolist(), strict=True)
        return [result for batch, offset in parts for result in self.applied(batch, offset)]

    def applied(self, batch, offset):
        process = batch.envelope["process_id"]
        state = json.loads(self.store.get(process, b'{"offset": -1, "rows": 0}'))
        if offset <= state["offset"]:
            return []
        state = {"offset": offset, "rows": state["rows"] + batch.rows}
        self.store[process] = json.dumps(state).encode()
        envelope = {"process_id": process, "rows": 0, "sequence": offset, "late_rows": state["rows"]}
        return [Batch(Topic.KERNEL_FREQUENCY, envelope)]

    def on_tick(self, now_ns, caught_up):
        return []

    def mark_sent(self, batch):
        pass

    def release(self):
        pass


def leave_time_around_seeks(app):
    """So that in every rebalance the fetch that was under way ends after recovery's seek and before the flow is
    resumed, as it happens to: positions come late, from a slow broker as it were, and recovery waits after its seek.
    And after the seek to committed offsets, before Faust clears what was fetched meanwhile (faust-streaming#596)."""
    recovery, perform_seek = app.tables.recovery, app.consumer.perform_seek
    update, seek = Fetcher._update_fetch_positions, recovery._seek_offsets

    async def update_late(*arguments):
        await asyncio.sleep(0.2)
        return await update(*arguments)

    async def seek_slowly(*arguments):
        await seek(*arguments)
        await asyncio.sleep(0.4)

    async def perform_seek_slowly():
        await perform_seek()
        await asyncio.sleep(1.0)

    Fetcher._update_fetch_positions, recovery._seek_offsets = update_late, seek_slowly
    app.consumer.perform_seek = perform_seek_slowly


def write_state(app):
    """Log what a worker that stands still waits for; a failed test shows its log."""
    consumer, recovery = app.consumer, app.tables.recovery
    coordinator = consumer._thread._consumer._coordinator
    facts = {
        "crashed": app.crash_reason, "rebalancing": app.rebalancing, "recovering": app.in_recovery,
        "generations": (app.consumer_generation_id, recovery._generation_id, coordinator.generation),
        "flow": (consumer.flow_active, app.flow_control.is_active()), "active": consumer._active_partitions,
        "buffered": consumer._buffered_partitions, "unacked": len(consumer.unacked), "fetcher": app._fetcher.state,
        "fetching ended": consumer._thread._consumer._fetcher.error_future.done(),
        "pending error": coordinator._pending_exception, "left": recovery.active_stats(),
        "read": dict(consumer._read_offset), "committed": dict(consumer._committed_offset),
    }  # fmt: skip
    for name, fact in facts.items():
        print(f"{name}: {fact}", file=sys.stderr, flush=True)
    for task in asyncio.all_tasks():
        task.print_stack(limit=2)


async def main():
    topics = preflight(settings(), [Topic.KERNEL, Topic.TICK], [Topic.KERNEL_FREQUENCY, Topic.TICK], ["probe"])
    order = CheckpointOrder("p") if sys.argv[1:] else None
    worker = StreamWorker(settings(), [Wiring("probe", (Topic.KERNEL,), Summing, order)], topics, Codec())

    async def report():
        owned = sorted(tp.partition for tp in worker.app.consumer.assignment() if tp.topic == Topic.KERNEL)
        restored = len(worker.runners["probe"].table.data.data)
        fenced = sum(s.value for m in STREAM_FENCED.collect() for s in m.samples if s.name.endswith("_total"))
        print(json.dumps({"owned": owned, "restored": restored, "fenced": fenced}), flush=True)

    worker.runners["probe"].table.on_recover(report)
    leave_time_around_seeks(worker.app)
    await worker.app.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, write_state, worker.app)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ended = ""
    while not (stop.is_set() or ended):  # as main.py does
        worker.check_halt()
        await asyncio.sleep(0.1)
        ended = worker.app.crashed or end_of_fetching(worker.app)
    if ended:
        write_state(worker.app)
        os._exit(1)
    await worker.app.stop()
    worker.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    sys.exit(asyncio.run(main()))
