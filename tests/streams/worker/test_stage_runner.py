"""State and results of a stage: written with the worker's epoch, and read only from workers that hold the partition."""

import asyncio
from types import SimpleNamespace

import faust
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from faust.types import TP

from drumline.infra.runtime.stage import FAILED, Incident
from drumline.schemas.batch import Batch
from drumline.schemas.epochs import read_epoch, write_epoch
from drumline.streams.worker.stage_runner import StageRunner

LATENESS = "gpu.lateness.v1"


class Fencing:
    stale = frozenset()

    def guard(self, table):
        pass

    def epoch(self, place):
        return 7

    def headers(self, place):
        return [write_epoch(7)]

    def take_stale(self, place):
        return self.stale


class Store:
    """A stage that is its store."""

    def __init__(self, store):
        self.store, self.incidents, self.rejected = store, [], []

    def reject(self, batch, error):
        self.rejected.append((batch.topic, str(error)))
        self.incidents.append(Incident("u", "job", "run", FAILED, error, 0, 600 * 10**9))

    def release(self):
        self.rejected.append("released")


@pytest.fixture
def runner(tmp_path):
    """A runner of partition 3; `written` is what it sends to its changelog, `results` what to its topics."""
    app = faust.App("fenced", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
    written, results = [], []

    async def send(batch, header):
        if batch.envelope.get("job") == "poison":
            raise ValueError("rows do not fit")
        results.append((batch.topic, header))

    runner = StageRunner(app, "job", Store, send, None, {}, Fencing())
    place = TP(runner.table.changelog_topic.get_topic_name(), 3)
    runner._app = SimpleNamespace(assignor=SimpleNamespace(assigned_actives=lambda: {place}))
    runner.table.changelog_topic = SimpleNamespace(
        get_topic_name=lambda: place.topic, send_soon=lambda **record: written.append(record)
    )
    runner.written, runner.results, runner.place = written, results, place
    return runner


def restore(runner):
    asyncio.run(runner._recovered())


def test_state_and_results_carry_the_epoch_of_the_partition(runner):
    restore(runner)

    def work(stage):
        stage.store["k"] = b"1"
        return [Batch(LATENESS, {})]

    asyncio.run(runner.apply(3, work))
    assert [read_epoch(record["headers"]) for record in runner.written] == [(7, "")]
    assert [(topic, read_epoch([header])) for topic, header in runner.results] == [
        (LATENESS, (7, f"{runner.place.topic}:3"))
    ]


def test_changes_of_a_checkpoint_are_sent_as_batches_in_their_order_each_with_the_epoch(runner):
    restore(runner)
    changes = [(f"k{number}", b"v" * 100) for number in range(30)] + [("large", b"v" * 5_000), ("k0", None)]
    records, sizes = [], []

    class Builder(BatchBuilder):
        def append(self, *, timestamp, key, value, headers):
            taken = super().append(timestamp=timestamp, key=key, value=value, headers=headers)
            if taken is not None:
                records.append((key, value, read_epoch(headers)[0]))
            return taken

    async def send_batch(batch, topic, *, partition):
        assert (topic, partition) == (runner.place.topic, 3)
        sizes.append(batch.record_count())
        return asyncio.sleep(0)

    producer = SimpleNamespace(create_batch=lambda: Builder(1_000, 0), send_batch=send_batch)
    runner._app.producer = SimpleNamespace(_ensure_producer=lambda: producer)

    async def write():
        _, store = runner._parts[3]
        at = 0
        while at < len(changes):
            count, sent = await store.write(changes[at:])
            assert [await arrived for arrived in sent] == [None]
            at += count

    asyncio.run(write())
    assert records == [(b"0003|" + key.encode(), value, 7) for key, value in changes]
    assert sum(sizes) == len(changes)
    assert len(sizes) < 10
    assert 1 in sizes
    data = runner.table.data.data
    assert data[b"0003|large"] == b"v" * 5_000
    assert b"0003|k0" not in data


def test_what_a_halted_worker_wrote_over_is_written_again(runner):
    runner.table.data.data[b"0003|a"] = b"new"
    runner._fencing.stale = frozenset({b"0003|a", b"0003|deleted"})
    restore(runner)
    assert {record["key"]: record["value"] for record in runner.written} == {b"0003|a": b"new", b"0003|deleted": None}


def result(epoch, source="communicator:0"):
    return SimpleNamespace(topic=LATENESS, partition=3, offset=1, headers=[write_epoch(epoch, source)])


def test_a_result_that_a_stage_reads_is_ignored_behind_one_of_its_successor_also_after_a_restart(runner):
    restore(runner)
    assert [runner.is_fenced(result(epoch)) for epoch in (5, 6, 5)] == [False, False, True]
    restore(runner)
    assert runner.is_fenced(result(5))
    assert not runner.is_fenced(result(5, "communicator:1"))
    assert not runner.is_fenced(SimpleNamespace(topic=LATENESS, partition=3, offset=1, headers=[]))


def test_nothing_is_written_between_a_halt_and_the_next_recovery(runner):
    restore(runner)
    stage = runner.stage(3)
    runner.close()
    stage.store["k"] = b"1"
    assert runner.stage(3) is None
    assert stage.rejected == ["released"]
    assert runner.written == []


def test_a_result_that_cannot_be_encoded_is_its_units_error_and_the_others_are_sent(runner):
    restore(runner)
    batches = [Batch(LATENESS, {"job": job}) for job in ("good", "poison", "good")]
    asyncio.run(runner.apply(3, lambda stage: batches))
    assert [topic for topic, _ in runner.results] == [LATENESS, LATENESS, "gpu.straggler.v1"]
    assert runner.stage(3).rejected == [(LATENESS, "rows do not fit")]
    assert runner.stage(3).incidents == []
