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


WHOLE = ["written 0", "arrived 0", "sent 0", "marked 0", "acknowledged 0"]


def test_messages_are_settled_one_after_the_other():
    assert settled([(None,) * 3] * 2) == (WHOLE + [step.replace("0", "1") for step in WHOLE], [], 0)


@pytest.mark.parametrize(("step", "before"), [(0, 0), (1, 1), (2, 3)], ids=["changelog", "result", "mark"])
def test_a_rejected_write_is_reported_once_and_nothing_after_it_is_acknowledged(step, before):
    denied = PermissionError("denied")
    steps = [(None,) * 3, tuple(denied if n == step else None for n in range(3)), (None,) * 3]
    done, failures, unsettled = settled(steps)
    assert done == WHOLE + [text.replace("0", "1") for text in WHOLE[:before]]
    assert (failures, unsettled) == ([denied], 2)
