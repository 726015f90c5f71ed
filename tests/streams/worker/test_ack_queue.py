"""A message is acknowledged when all that it caused is durable, in order; a broker's refusal ends that, once."""

import asyncio

import pytest

from drumline.streams.worker.ack_queue import AckQueue, Delivery, Output


class Part:
    """Stage and store of an output: marks it and has one write for that."""

    def __init__(self, done, mark):
        self.done, self.mark = done, mark

    def mark_sent(self, batch):
        self.done.append(f"sent {batch}")

    def take_pending(self):
        return [self.mark]


class Answer:
    """What the broker will say to a write. Not a coroutine: after a refusal nobody waits for those that are left."""

    def __init__(self, done, what, error):
        self.done, self.what, self.error = done, what, error

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        if self.error is not None:
            raise self.error
        self.done.append(self.what)


def settled(steps):
    """What is done, in order, of deliveries whose writes, outputs and marks end as `steps` say: (None | error) each."""
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


WHOLE = ["written 0", "arrived 0", "sent 0", "marked 0", "acknowledged 0"]


def test_messages_are_settled_one_after_the_other():
    assert settled([(None,) * 3] * 2) == (WHOLE + [step.replace("0", "1") for step in WHOLE], [], 0)


@pytest.mark.parametrize(("step", "before"), [(0, 0), (1, 1), (2, 3)], ids=["changelog", "result", "mark"])
def test_a_write_that_is_refused_is_told_once_and_nothing_after_it_is_acknowledged(step, before):
    denied = PermissionError("denied")
    steps = [(None,) * 3, tuple(denied if n == step else None for n in range(3)), (None,) * 3]
    done, failures, unsettled = settled(steps)
    assert done == WHOLE + [text.replace("0", "1") for text in WHOLE[:before]]
    assert (failures, unsettled) == ([denied], 2)
