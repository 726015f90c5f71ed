"""Records wait for a checkpoint of the state that they changed, and a checkpoint for the broker."""

import asyncio
from types import SimpleNamespace

import pytest

from drumline.infra.config.settings import Settings
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.worker import checkpoints as module
from drumline.streams.worker.checkpoints import CHECKPOINT_S, IDLE_S, Checkpoints
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker, Wiring
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore


class Worker:
    """One stage with one partition, whose changelog takes changes while `answers` is set, and the records so far."""

    def __init__(self, error=None):
        self.now, self.halted, self.error, self.failures = 0.0, False, error, []
        self.written, self.acknowledged, self.messages, self.polls = [], [], set(), []
        self.answers = asyncio.Event()
        self.answers.set()
        self.store = PartitionStore({}, self._write, CheckpointOrder("abv", "v"))
        consumer = SimpleNamespace(_unacked_messages=self.messages)
        self.app = SimpleNamespace(consumer=consumer, rebalancing=False, should_stop=False)
        self.checkpoints = Checkpoints(self.app, [self], self.check_halt, self._failed, lambda: self.now)

    def checkpointed(self, partition=None):
        return [] if self.store.closed else [self.store]

    def check_halt(self):
        self.store.closed |= self.halted

    async def _failed(self, error):
        self.failures.append(error)

    def _write(self, key, value):
        self.written.append((key, value))

        async def sent():
            await self.answers.wait()
            if self.error is not None:
                raise self.error

        return asyncio.ensure_future(sent())

    def record(self, number, **changes):
        """Process a record that makes these changes, and settle it."""
        message = Message(self, number)
        self.messages.add(message)
        self.store.update({key: str(value).encode() for key, value in changes.items()})
        self.checkpoints.acknowledger([message], [self])()

    async def pass_time(self, seconds):
        """Poll after a time, until the broker or the end."""
        self.now += seconds
        self.polls.append(asyncio.ensure_future(self.checkpoints.poll()))
        for _ in range(20):
            await asyncio.sleep(0)


class Message:
    def __init__(self, worker, number):
        self.worker, self.number, self.partition, self.key, self.value = worker, number, 0, b"k", b"v" * 1000

    def ack(self, consumer):
        self.worker.acknowledged.append(self.number)


class Unread(SimpleNamespace):
    """A message of Faust's, which is one of a set."""

    __hash__ = object.__hash__


def run(test, **options):
    async def body():
        worker = Worker(**options)
        await test(worker)
        await asyncio.gather(*worker.polls)

    asyncio.run(body())


def test_a_value_that_each_record_changes_is_written_once_and_the_records_are_acknowledged_after_it():
    async def test(worker):
        worker.answers.clear()
        for number in range(5):
            worker.record(number, a1=number)
            await worker.pass_time(IDLE_S / 2)
        assert (worker.written, worker.checkpoints.held) == ([], 5)
        await worker.pass_time(CHECKPOINT_S)
        assert worker.written == [("a1", b"4")]
        assert (worker.acknowledged, worker.checkpoints.waiting) == ([], 5)
        worker.answers.set()
        await worker.pass_time(0)
        assert (worker.acknowledged, worker.checkpoints.waiting) == ([0, 1, 2, 3, 4], 0)

    run(test)


@pytest.mark.parametrize(
    ("changes", "has_records", "times"),
    [(module.PIECE - 1, True, 0), (module.PIECE, True, 2), (module.PIECE, False, 1)],
)
def test_a_large_job_gives_free_memory_back_to_the_system_while_it_runs(monkeypatch, changes, has_records, times):
    trimmed = []
    monkeypatch.setattr(module.heap, "trim", lambda: trimmed.append(True))

    async def test(worker):
        worker.record(0, **{f"a{number}": 0 for number in range(changes)})
        await worker.checkpoints.write()
        for number in range(1, 5):
            worker.now += module.TRIM_S / 2
            if has_records:
                worker.record(number, b1=number)
            await worker.checkpoints.poll()

    run(test)
    assert len(trimmed) == times


def test_what_comes_while_a_checkpoint_is_written_waits_for_the_next():
    async def test(worker):
        worker.answers.clear()
        worker.record(0, a1=0)
        await worker.pass_time(CHECKPOINT_S)
        worker.record(1, a1=1)
        worker.answers.set()
        await worker.pass_time(0)
        assert worker.acknowledged == [0]
        await worker.pass_time(CHECKPOINT_S)
        assert (worker.acknowledged, worker.written) == ([0, 1], [("a1", b"0"), ("a1", b"1")])

    run(test)


def test_a_checkpoint_of_many_changes_is_followed_by_a_later_one(monkeypatch):
    monkeypatch.setattr(module, "CHANGES_PER_S", 1)

    async def test(worker):
        worker.record(0, **{f"a{key}": 0 for key in range(8)})
        await worker.pass_time(CHECKPOINT_S)
        assert len(worker.written) == 8
        for number in range(1, 16):
            await worker.pass_time(IDLE_S / 2)
            worker.record(number, a0=number)
        assert len(worker.written) == 8
        await worker.pass_time(IDLE_S / 2)
        assert worker.written[8:] == [("a0", b"15")]
        worker.record(16, a0=16)
        for number in range(17, 17 + round(2 * CHECKPOINT_S / IDLE_S)):
            await worker.pass_time(IDLE_S / 2)
            worker.record(number, a0=number)
        assert len(worker.written) == 10, "few changes wait no longer than others"

    run(test)


@pytest.mark.parametrize("reason", ["idle", "rebalancing", "should_stop", "full"])
def test_a_checkpoint_does_not_wait_without_records_or_where_faust_waits_for_them(reason, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD", 3)

    async def test(worker):
        for number in range(3 if reason == "full" else 2):
            worker.record(number, a1=number)
        setattr(worker.app, reason, True)
        await worker.pass_time(IDLE_S if reason == "idle" else 0)
        await worker.checkpoints.below_limit()
        assert worker.acknowledged == ([0, 1, 2] if reason == "full" else [0, 1])

    run(test)


def test_a_record_of_a_lost_partition_is_not_acknowledged_and_no_rebalance_waits_for_it():
    async def test(worker):
        worker.record(0, a1=0)
        worker.halted = True
        await worker.pass_time(CHECKPOINT_S)
        assert (worker.written, worker.acknowledged, worker.messages) == ([], [], set())

    run(test)


def test_a_partition_that_is_lost_while_a_checkpoint_is_written_is_not_acknowledged():
    async def test(worker):
        worker.answers.clear()
        worker.record(0, a1=0)
        await worker.pass_time(CHECKPOINT_S)
        worker.halted = True
        worker.answers.set()
        await worker.pass_time(0)
        assert (worker.acknowledged, worker.messages) == ([], set())

    run(test)


def test_a_rejected_change_ends_the_worker_and_acknowledges_nothing():
    denied = PermissionError("denied")

    async def test(worker):
        worker.record(0, a1=0)
        await worker.pass_time(CHECKPOINT_S)
        assert (worker.failures, worker.acknowledged) == ([denied], [])

    run(test, error=denied)


def test_after_a_rejected_change_nothing_is_written_or_acknowledged(monkeypatch):
    """The changes behind it are lost with it; a newer offset among those that follow would hide them for ever."""
    monkeypatch.setattr(module, "PIECE", 1)
    denied = PermissionError("denied")

    async def test(worker):
        worker.record(0, a1=0, b1=0)
        await worker.pass_time(CHECKPOINT_S)
        worker.error = None
        worker.record(1, b1=1)
        await worker.pass_time(CHECKPOINT_S)
        assert (worker.written, worker.failures, worker.acknowledged) == ([("a1", b"0")], [denied], [])

    run(test, error=denied)


@pytest.mark.parametrize("before_a_rebalance", [False, True])
def test_records_that_come_while_the_stages_are_closed_are_neither_buried_nor_acknowledged(
    tmp_path, monkeypatch, before_a_rebalance
):
    """Whoever recovers the partition reads them again, behind the records that were held."""
    wirings = [Wiring("lateness", (Topic.COLLECTIVE,), lambda store: None, CheckpointOrder("ab"))]
    worker = StreamWorker(Settings(stream={"data_dir": tmp_path}), wirings, WorkerTopics(1, {}), Codec())
    acknowledged, buried, waiting = [], [], set()

    async def send_dead_letter(message, error, part=0, value=None):
        buried.append(message)

    monkeypatch.setattr(worker.records._output, "send_dead_letter", send_dead_letter)
    monkeypatch.setattr(worker.app, "consumer", SimpleNamespace(_unacked_messages=waiting), raising=False)
    if before_a_rebalance:  # the partition is this worker's again
        [runner] = worker.runners.values()
        runner._parts[0] = SimpleNamespace(release=lambda: None), PartitionStore({}, None)
    place = {"topic": Topic.COLLECTIVE, "partition": 0, "tp": (Topic.COLLECTIVE, 0)}
    place |= {"generation_id": worker.app.consumer_generation_id - before_a_rebalance}
    messages = [
        Unread(**place, offset=offset, value=b"no record", key=b"k", headers=[], timestamp=1.0, ack=acknowledged.append)
        for offset in (7, 8)
    ]
    waiting.update(messages)
    assert asyncio.run(worker._process(messages)) is None
    assert (acknowledged, buried, waiting) == ([], [], set())
    worker.close()


def test_a_record_keeps_no_bytes_while_it_waits():
    async def test(worker):
        worker.record(0, a1=0)
        [message] = worker.messages
        assert message.value is None

    run(test)


def test_changes_are_written_in_the_order_of_their_kinds_and_deletions_last():
    store = PartitionStore({"a0": b"", "b0": b""}, None, CheckpointOrder("ab"))
    for key in ("b1", "b0", "a1", "other", "a2", "a1"):
        store[key] = b"1"
    del store["a0"], store["a2"]
    assert store.has_changes
    assert store.take_checkpoint() == [("other", b"1"), ("a1", b"1"), ("b1", b"1"), ("b0", b"1"), ("a0", None)]
    assert (store.take_checkpoint(), store.has_changes) == ([], False)


def test_a_value_that_was_deleted_and_comes_again_follows_its_deletion():
    """A unit that ends and begins again within a checkpoint must not mix with what is left of it."""
    store = PartitionStore({"a0": b"old", "b0": b"old"}, None, CheckpointOrder("ab"))
    del store["a0"]
    store["b0"] = b"ended"
    store["a0"] = b"new"
    assert store.take_checkpoint() == [("b0", b"ended"), ("a0", None), ("a0", b"new")]


def test_what_no_record_brings_back_is_written_at_once_but_never_ahead_of_its_deletion():
    written = []
    store = PartitionStore({"v0": b"old"}, lambda key, value: written.append((key, value)), CheckpointOrder("a", "v"))
    store["a1"], store["v1"] = b"1", b"1"
    assert written == [("v1", b"1")]
    del store["v0"]
    store["v0"] = b"new"
    assert len(written) == 1
    taken = store.take_checkpoint()
    assert taken == [("a1", b"1"), ("v0", None), ("v0", b"new")]
    store["v0"] = b"newer"  # while it is written
    assert len(written) == 1
    for change in taken + store.take_checkpoint():
        asyncio.run(store.write([change]))
    store["v0"] = b"newest"  # while that is written
    for change in store.take_checkpoint():
        asyncio.run(store.write([change]))
    assert [value for key, value in written if key == "v0"] == [None, b"new", b"newer", b"newest"]


def test_a_value_does_not_overtake_the_one_of_a_checkpoint_that_is_still_written():
    written = []
    store = PartitionStore({}, lambda key, value: written.append((key, value)), CheckpointOrder("abv", "v"))
    store["v1"] = b"0"
    del store["v1"]
    store["v1"] = b"1"  # behind the deletion
    first = store.take_checkpoint()
    store["v1"] = b"2"
    for checkpoint in (first, store.take_checkpoint()):
        for change in checkpoint:
            asyncio.run(store.write([change]))
    assert written == [("v1", b"0"), ("v1", None), ("v1", b"1"), ("v1", b"2")]
    store.take_checkpoint()
    store["v1"] = b"3"
    assert written[-1] == ("v1", b"3"), "at once again"


def test_a_change_of_a_checkpoint_does_not_overtake_a_value_that_was_written_at_once():
    """Changes that are written at once wait in Faust's buffer, and a checkpoint goes past it."""
    written = []

    async def test():
        async def slow(key, value):
            await asyncio.sleep(0)
            written.append((key, value))

        async def send(changes):
            written.extend(changes)
            return len(changes), None

        def write(key, value):
            return asyncio.ensure_future(slow(key, value))

        store = PartitionStore({}, write, CheckpointOrder("av", "v"), send)
        store["v1"], store["a1"] = b"1", b"1"
        del store["v1"]
        for change in store.take_checkpoint():
            await store.write([change])

    asyncio.run(test())
    assert written == [("a1", b"1"), ("v1", b"1"), ("v1", None)]
