"""Deliver fetched messages to agents' buffers at once where nothing holds them back.

Faust delivers each message in a task of its own, beside three that wait for the consumer's end: together they cost more
than the message does. Only where a buffer is full, the producer is behind, or partitions move, is there anything to
wait for. And for each message it looks for serializers, where agents take the bytes, and for settings of the producer.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any


def deliver_at_once(app: Any) -> None:
    """Replace how `app`'s consumer waits for a delivery, and for its producer. Call once, before the app starts."""
    consumer, unsent = app.consumer, app.producer.buffer
    wait_first, wait_until_ebb = consumer.wait_first, unsent.wait_until_ebb

    async def wait_if_behind() -> None:
        """Wait while the producer is behind, as `ProducerBuffer.wait_until_ebb` does."""
        if unsent.pending.qsize() > unsent.max_messages:
            await wait_until_ebb()

    async def wait_briefly(delivery: Any, *events: Any, **options: Any) -> Any:
        """Wait until a message is delivered, or one of the events is done, as `Service.wait_first` does.

        Without events it is no delivery.
        """
        held = consumer.suspend_flow, consumer._stopped, consumer._crashed
        if events and not any(state.is_set() for state in held):
            try:
                awaited = delivery.send(None)
            except BaseException as end:
                for waiting in events:
                    waiting.close()
                if isinstance(end, StopIteration):  # delivered
                    return None
                raise
            delivery = _resumed(delivery, awaited)
        return await wait_first(delivery, *events, **options)

    consumer.wait_first = wait_briefly
    unsent.wait_until_ebb = wait_if_behind


def bytes_topic(app: Any, name: str, buffered: int | None = None) -> Any:
    """Return a topic whose keys and values agents get as they are. `buffered`: messages in its buffer, None = Faust's
    setting; `app.topic` takes that number too, and drops it.
    """
    topic = app.topic(name, schema=_of_bytes())
    topic.maxsize = buffered
    return topic


def _of_bytes() -> Any:
    import faust
    from faust.events import Event

    class Bytes(faust.Schema[Any, Any]):
        def compile(self, app: Any, **_: Any) -> Any:
            async def decode(message: Any, **_: Any) -> Any:
                return Event(app, message.key, message.value, message.headers, message)

            return decode

    return Bytes(key_type=bytes, value_type=bytes)


async def _resumed(begun: Coroutine[Any, Any, None], awaited: Any) -> None:
    """Await the rest of a coroutine that was begun without a task, and waits for `awaited`."""
    await _steps(begun, awaited)


@coroutine
def _steps(begun: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            try:
                answer = yield awaited
            except BaseException as error:  # such as the task's cancellation
                awaited = begun.throw(error)
            else:
                awaited = begun.send(answer)
        except StopIteration:
            return
