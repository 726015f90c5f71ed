"""A message is acknowledged when all that it caused is durable, in order; a broker's refusal ends that, once."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from drumline.streams.worker.ack_queue import AckQueue, Delivery, Output, settle


class Part:
    """Stage and store of an output: marks it and has one write for that."""

    def __init__(self, done, mark):
        self.done, self.mark = done, mark

    def mark_sent(self, batch):
        self.done.append(f"sent {batch}")

    def take_pending(self):
        return [self.mark]


class Answer:
    """Stands for the broker's answer to a write. Not a coroutine: after an error no task awaits the remaining ones."""

    def __init__(self, done, label, error):
        self.done, self.label, self.error = done, label, error

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        if self.error is not None:
            raise self.error
        self.done.append(self.label)


def settled(steps):
    """Settle deliveries whose writes, outputs and marks end as `steps` state: (None | error) each.

    Returns what is done, in order.
    """
    done, failures = [], []

    async def run():
        async def failed(error):
            failures.append(error)

        queue = AckQueue(failed)
        for number, (write, output, mark) in enumerate(steps):
            part = Part(done, Answer(done, f"marked {number}", mark))
            arrived = Output(part, part, number, Answer(done, f"arrived {number}", output))
            acknowledge = (lambda n: lambda: done.append(f"acknowledged {n}"))(number)
            await queue.put(Delivery(acknowledge, [Answer(done, f"written {number}", write)], [arrived]))
        await asyncio.sleep(0.05)
        queue.cancel()
        return queue.unsettled

    return done, failures, asyncio.run(run())


STEPS = ("written", "arrived", "sent", "marked", "acknowledged")


def of(done, number):
    return [text for text in done if text.endswith(f" {number}")]


def steps_of(number, count=len(STEPS)):
    return [f"{step} {number}" for step in STEPS[:count]]


def test_each_message_is_settled_in_steps_and_acknowledged_in_order():
    done, failures, unsettled = settled([(None,) * 3] * 3)
    assert [of(done, number) for number in range(3)] == [steps_of(number) for number in range(3)]
    assert [text for text in done if text.startswith("acknowledged")] == [f"acknowledged {n}" for n in range(3)]
    assert (failures, unsettled) == ([], 0)


@pytest.mark.parametrize(("step", "before"), [(0, 0), (1, 1), (2, 3)], ids=["changelog", "result", "mark"])
def test_a_rejected_write_is_reported_once_and_nothing_after_it_is_acknowledged(step, before):
    denied = PermissionError("denied")
    steps = [(None,) * 3, tuple(denied if n == step else None for n in range(3)), (None,) * 3]
    done, failures, unsettled = settled(steps)
    assert (of(done, 0), of(done, 1)) == (steps_of(0), steps_of(1, before))
    assert "acknowledged 2" not in done
    assert (failures, unsettled) == ([denied], 2)


@pytest.mark.parametrize("outputs", [1, 50])
def test_what_is_in_flight_is_awaited_together(outputs):
    """One after the other, 62 results a second left the worker."""
    latency_s, in_flight = 0.02, 50

    class Store:
        def mark_sent(self, batch):
            pass

        def take_pending(self):
            return [asyncio.ensure_future(asyncio.sleep(latency_s))]

    async def run():
        store, done = Store(), asyncio.Event()
        queue = AckQueue(None)
        for number in range(in_flight // outputs):
            results = [
                Output(store, store, number, asyncio.ensure_future(asyncio.sleep(latency_s))) for _ in range(outputs)
            ]
            last = number == in_flight // outputs - 1
            await queue.put(Delivery(done.set if last else lambda: None, [], results))
        started = asyncio.get_running_loop().time()
        await done.wait()
        queue.cancel()
        return asyncio.get_running_loop().time() - started

    assert asyncio.run(run()) < in_flight * latency_s / 2


def test_a_result_that_is_too_large_for_kafka_is_its_units_error_and_the_worker_goes_on():
    rejected, done = [], []

    async def run():
        async def arrived():
            raise MessageSizeTooLargeError

        store = SimpleNamespace(
            mark_sent=lambda batch: None, take_pending=list, reject=lambda batch, error: rejected.append(batch)
        )
        async for delivery in settle([Delivery(lambda: done.append(1), [], [Output(store, store, "b", arrived())])]):
            assert delivery.outputs

    asyncio.run(run())
    assert (rejected, done) == (["b"], [1])
