"""State that is written by checkpoints: a kill loses what came since the last one, and the records bring it back."""

import asyncio
import random

import pytest
from support.labs.light import light, light_batches
from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, ddp, mesh, overlapped, simulate
from support.tables import apply_batch

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import state as lateness_state
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import verdicts
from drumline.streams.stragglers import state as job_state
from drumline.streams.stragglers.stage import READ_BACK_NS, JobStage
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore

SECOND = 1_000_000_000
CONFIG = StragglerConfig(window_steps=12, retention_steps=24)
DEEP = batches(simulate(mesh(2, 2), 96, (Fault(1, "idle", 25 * MS, first=12, last=35), Fault(2, "copy", 9 * MS, 2))))
LIGHT = light_batches(light(overlapped(ddp(4), 60, (Fault(1, "idle", 25 * MS, period=2, last=35),), seed=1)))
STREAMS = pytest.mark.parametrize("stream", [DEEP, LIGHT], ids=["deep", "light"])
ORDERS = (
    CheckpointOrder(lateness_state.CHECKPOINT_KINDS),
    CheckpointOrder(job_state.CHECKPOINT_KINDS, job_state.AT_ONCE_KINDS),
)


class Worker:
    """Both stages with their changelogs, and logs that are read again from what was acknowledged last."""

    def __init__(self, stream):
        self.stream, self.lateness, self.verdicts = stream, [], []
        self.changelogs, self.read, self.read_late = ([], []), 0, 0
        self.acknowledged = (0, 0)
        self.start([0, 0])

    def start(self, survived):
        """Recover from so many changes of each changelog."""
        for changelog, count in zip(self.changelogs, survived, strict=True):
            del changelog[count:]
        self.stores = []
        for changelog, order in zip(self.changelogs, ORDERS, strict=True):
            kept = {key: value for key, value in dict(changelog).items() if value is not None}
            self.stores.append(PartitionStore(kept, self._writer(changelog), order))
        self.communicators, self.jobs = CommunicatorStage(self.stores[0], CONFIG), JobStage(self.stores[1], CONFIG)
        self.read, self.read_late = self.acknowledged

    @staticmethod
    def _writer(changelog):
        return lambda key, value: changelog.append((key, value))

    @property
    def written(self):
        return [len(changelog) for changelog in self.changelogs]

    def advance(self, count, now):
        for offset in range(self.read, min(self.read + count, len(self.stream))):
            batch = self.stream[offset][1]
            if batch.topic == Topic.STEP:
                self.publish(apply_batch(self.jobs, batch, offset, now))
            else:
                self.pass_on(apply_batch(self.communicators, batch, offset, now), now)
            self.read = offset + 1
        self.read_lateness(now)

    def pass_on(self, late, now):
        for batch in late:
            self.lateness.append(batch)
            self.communicators.mark_sent(batch)
        self.read_lateness(now)

    def read_lateness(self, now):
        while self.read_late < len(self.lateness):
            self.publish(apply_batch(self.jobs, self.lateness[self.read_late], self.read_late, now))
            self.read_late += 1

    def publish(self, batches):
        for batch in batches:
            self.verdicts.append(batch)
            self.jobs.mark_sent(batch)

    def tick(self, now, caught_up):
        self.pass_on(self.communicators.on_tick(now, caught_up), now)
        self.publish(self.jobs.on_tick(now, caught_up))

    def checkpoint(self):
        """Write one, and return how much of each changelog was there before."""
        before, place = self.written, (self.read, self.read_late)
        for store in self.stores:
            for key, value in store.take_checkpoint():
                asyncio.run(store.write([(key, value)]))
        self.acknowledged = place
        return before

    def table(self):
        """Return what people see: of each window the highest revision, and the last one published of it."""
        return seen(sorted(self.verdicts, key=lambda batch: batch.envelope["revision"]))


@STREAMS
@pytest.mark.parametrize("seed", range(5))
def test_a_kill_between_any_two_writes_of_a_checkpoint_is_repaired_by_the_records_since_the_last_one(seed, stream):
    chance, worker, now, kills = random.Random(seed), Worker(stream), 10**18, 0
    while worker.read < len(stream):
        worker.advance(chance.randrange(1, 60), now)
        now += SECOND
        worker.tick(now, chance.random() < 0.3)
        if chance.random() < 0.3:
            before, acknowledged = worker.written, worker.acknowledged
            worker.checkpoint()
            if chance.random() < 0.4:  # killed while it was written: nothing of it is acknowledged
                worker.acknowledged = acknowledged
                worker.start([chance.randint(*ends) for ends in zip(before, worker.written, strict=True)])
                kills += 1
        elif chance.random() < 0.2:
            worker.start(worker.written)
            kills += 1
    for _ in range(3):
        now += 2 * CONFIG.idle_ns
        worker.tick(now, True)
    assert kills
    assert worker.table() == seen(verdicts(stream, CONFIG))


def test_a_message_costs_no_write_and_a_verdict_is_written_at_once():
    worker = Worker(DEEP)
    worker.advance(len(DEEP), 10**18)
    kinds = [key[0] for changelog in worker.changelogs for key, _ in changelog]
    assert kinds == ["w", *["v"] * len(worker.verdicts)]
    before = worker.checkpoint()
    values = sum(worker.written) - sum(before)
    assert 0 < values < len(DEEP) + len(worker.lateness), "came and went, or changed again"


def test_the_progress_of_a_communicator_is_written_once_a_window():
    worker = Worker(DEEP)
    while worker.read < len(DEEP):
        worker.advance(20, 10**18)
        worker.checkpoint()
    keys = [key for key, _ in worker.changelogs[1] if key.startswith("c|")]
    windows = 96 // CONFIG.window_steps
    assert windows <= len(keys) / len(set(keys)) <= windows + 1


def test_what_was_published_is_not_taken_back_while_records_are_read_again():
    """A restart has rows as of the last checkpoint: a verdict on fewer rows would replace the one on all."""
    late = [item for item in DEEP if item[1].envelope["rank"] == 3 and item[1].topic == Topic.STEP]
    worker, now = Worker([item for item in DEEP if item not in late[:12]] + late[:12]), 10**18
    worker.advance(len(DEEP) - 12, now)
    worker.checkpoint()
    for _ in range(2):
        now += 2 * CONFIG.idle_ns
        worker.tick(now, True)
    worker.advance(12, now)
    worker.tick(now + SECOND, True)
    published, revisions = worker.table(), len(worker.verdicts)
    worker.start(worker.written)
    now += 2 * SECOND
    worker.tick(now, False)
    worker.advance(12, now)
    for seconds in (1, READ_BACK_NS // SECOND):
        worker.tick(now + seconds * SECOND, False)
    assert worker.table() == published
    assert len(worker.verdicts) == revisions
