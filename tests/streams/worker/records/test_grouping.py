"""Records that wait are taken together: as the stream would yield them, by partition, bounded."""

import asyncio
from types import SimpleNamespace

import pytest
from mode.utils.queues import FlowControlEvent, FlowControlQueue

from drumline.schemas.topics import Topic
from drumline.streams.worker.faust_config import MAX_POLL
from drumline.streams.worker.records.grouping import BUFFERED, MOST_BYTES, pieces, take_waiting, wait_until_filled


class Queue(list):
    def __init__(self, events, errors=()):
        super().__init__(events)
        self._errors = errors

    def qsize(self):
        return len(self)

    def get_nowait(self):
        return self.pop(0)


def app(active=True, generation=3):
    tracked = []
    return SimpleNamespace(
        consumer=SimpleNamespace(track_message=tracked.append),
        flow_control=SimpleNamespace(is_active=lambda: active),
        consumer_generation_id=generation,
        tracked=tracked,
    )


def event(generation=3, tracked=False):
    return SimpleNamespace(message=SimpleNamespace(generation_id=generation, tracked=tracked))


def stream(*events, errors=()):
    return SimpleNamespace(channel=SimpleNamespace(queue=Queue(events, errors)))


def test_what_waits_is_taken_in_its_order_and_faust_waits_for_it():
    events, of = [event() for _ in range(3)], app()
    assert take_waiting(of, stream(*events)) == events
    assert of.tracked == [taken.message for taken in events]


def test_a_message_that_faust_waits_for_already_is_not_counted_twice():
    of = app()
    assert len(take_waiting(of, stream(event(tracked=True)))) == 1
    assert of.tracked == []


@pytest.mark.parametrize(("active", "generation"), [(False, 3), (True, 4)])
def test_what_came_before_a_rebalance_is_dropped_as_the_stream_drops_it(active, generation):
    waiting, of = stream(event(), event()), app(active, generation)
    assert take_waiting(of, waiting) == []
    assert (of.tracked, waiting.channel.queue.qsize()) == ([], 0)


def test_an_error_of_the_buffer_is_left_to_the_stream():
    waiting = stream(event(), errors=(ValueError(),))
    assert take_waiting(app(), waiting) == []
    assert waiting.channel.queue.qsize() == 1


@pytest.mark.parametrize("deliveries", [0, 1, 5])
def test_a_buffer_is_taken_when_it_grows_no_more(deliveries):
    async def test():
        waiting = stream()

        async def deliver():
            for _ in range(deliveries):
                waiting.channel.queue.extend([event()] * 3)
                await asyncio.sleep(0)

        delivering = asyncio.ensure_future(deliver())
        await asyncio.sleep(0)
        await wait_until_filled(waiting)
        assert waiting.channel.queue.qsize() == 3 * deliveries
        await delivering

    asyncio.run(test())


def test_a_poll_of_one_topic_does_not_keep_it_out_of_the_next():
    queue = FlowControlQueue(BUFFERED, flow_control=FlowControlEvent())
    pressed = [
        queue.put_nowait_enhanced(number, on_pressure_high=lambda: None, on_pressure_drop=lambda: None)
        for number in range(MAX_POLL)
    ]
    assert not any(pressed)


def message(partition, number, topic=Topic.STEP, size=10, generation=3):
    value = b"v" * size
    return SimpleNamespace(topic=topic, partition=partition, offset=number, value=value, generation_id=generation)


def cut(messages, unknown=()):
    codec = SimpleNamespace(decodes_at_once=lambda value: value not in unknown)
    return [[(of.partition, of.offset) for of in piece] for piece in pieces(messages, codec)]


def test_messages_of_a_partition_are_together_in_their_order():
    messages = [message(number % 2, number) for number in range(5)]
    assert cut(messages) == [[(0, 0), (0, 2), (0, 4)], [(1, 1), (1, 3)]]


def test_messages_from_before_a_rebalance_are_apart():
    messages = [message(0, number, generation=3 + number // 2) for number in range(4)]
    assert cut(messages) == [[(0, 0), (0, 1)], [(0, 2), (0, 3)]]


def test_a_topic_of_large_records_is_processed_one_by_one():
    assert cut([message(0, number, Topic.KERNEL) for number in range(3)]) == [[(0, 0)], [(0, 1)], [(0, 2)]]


def test_a_message_that_waits_for_the_registry_holds_up_none_before_it():
    messages = [message(0, 0), message(0, 1), message(0, 2, size=11), message(0, 3), message(0, 4)]
    assert cut(messages, [messages[2].value]) == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3), (0, 4)]]


def test_messages_of_many_bytes_are_cut():
    large = [message(0, number, size=MOST_BYTES // 2) for number in range(3)]
    assert cut(large) == [[(0, 0), (0, 1)], [(0, 2)]]
    assert cut([message(0, 0, size=MOST_BYTES * 2), message(0, 1)]) == [[(0, 0)], [(0, 1)]]


def test_a_message_without_a_value_is_one_of_them():
    empty = message(0, 1)
    empty.value = None
    assert cut([message(0, 0), empty]) == [[(0, 0), (0, 1)]]
