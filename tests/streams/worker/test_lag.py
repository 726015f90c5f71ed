"""Lag of a worker, before and after its consumer runs; a partition that stands still keeps it from being ready."""

from types import SimpleNamespace
from typing import ClassVar

from faust.exceptions import ConsumerNotStarted
from faust.types import TP

from drumline.infra.telemetry.health import Health
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.telemetry import STUCK_S, Readiness

STEP, KERNEL = TP("gpu.step.v1", 0), TP("gpu.kernel.v1", 3)


class Consumer:
    """A consumer whose thread starts later, as Faust's does."""

    started = False
    _committed_offset: ClassVar[dict] = {}

    def assignment(self):
        if not self.started:
            raise ConsumerNotStarted("Consumer thread not yet started")
        return {TP("gpu.step.v1", 0), TP("other", 0)}

    def highwater(self, tp):
        return 7


def test_a_worker_that_is_starting_is_behind_by_nothing():
    consumer = Consumer()
    lag = Lag(SimpleNamespace(consumer=consumer), ["gpu.step.v1"])
    assert lag.records() == 0
    consumer.started = True
    assert lag.records() is None, "its position is not known yet"
    lag.handled(TP("gpu.step.v1", 0), 4)
    assert lag.records() == 2


class Worker:
    """A worker that has read so many records of each partition, of so many."""

    def __init__(self, ends):
        self.ends, self.now = ends, 0.0
        consumer = SimpleNamespace(
            assignment=lambda: set(ends), highwater=self.ends.get, _committed_offset=dict.fromkeys(ends, 0)
        )
        self.lag = Lag(SimpleNamespace(consumer=consumer), [tp.topic for tp in ends])
        self.readiness = Readiness(SimpleNamespace(), Health())

    def second(self, seconds=1.0, settled=0, unsettled=0):
        self.now += seconds
        self.readiness.progress(settled, unsettled, self.lag.standstill(self.now), self.now)
        return self.readiness.health.ready().get("records", "")


def test_a_partition_that_stands_still_while_another_moves_is_named():
    worker = Worker({STEP: 9, KERNEL: 100})
    worker.lag.handled(STEP, 3)
    reasons = []
    for second in range(40):
        worker.lag.handled(KERNEL, second)
        reasons.append(worker.second())
    assert reasons[: int(STUCK_S)] == [""] * int(STUCK_S)
    assert reasons[-1] == "nothing has moved for 39 s: gpu.step.v1-0 at offset 4"
    worker.lag.handled(STEP, 4)
    assert worker.second() == ""


def test_without_records_and_right_after_partitions_moved_it_is_ready():
    worker = Worker({STEP: 9})
    worker.lag.handled(STEP, 8)
    assert [worker.second(), worker.second(10 * STUCK_S)] == ["", ""]
    worker.ends[STEP] = 20
    assert worker.second() == ""
    assert worker.second(2 * STUCK_S)
    worker.lag.reset()
    assert worker.second() == ""


def test_acknowledgements_that_do_not_come_are_named():
    worker = Worker({})
    assert worker.second(unsettled=3, settled=5) == ""
    assert worker.second(STUCK_S + 1, 5, 3) == "nothing has moved for 31 s: 3 acknowledgements of Kafka are missing"
    assert worker.second(settled=6, unsettled=3) == ""
