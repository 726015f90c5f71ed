"""Lag of a worker, before and after its consumer runs."""

from types import SimpleNamespace
from typing import ClassVar

from faust.exceptions import ConsumerNotStarted
from faust.types import TP

from drumline.streams.worker.lag import Lag


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
