"""Take the records of a large job together: many are read and applied in one pass, which costs a part of one by one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from drumline.schemas.codec import Codec
from drumline.schemas.parts.joining import JOINED_BY_AGENTS
from drumline.schemas.topics import Topic

#: Topics of which a large job has many records, a few kB each.
TOGETHER = JOINED_BY_AGENTS | {Topic.LATENESS}
#: Records of such a topic that are buffered, and so taken together at most, where agents write it: they join 256 kB at
#: most, so it is no more than the 32 records of 1 MB that Faust buffers of other topics. A poll fills 4/5 of it at
#: most: beyond, Faust would leave the topic out of the next ones.
BUFFERED = 128
#: Bytes of records that are taken together: they are in memory, with all that is made of them.
MOST_BYTES = 1 << 20


async def wait_until_filled(stream: Any) -> None:
    """Wait as long as a stream's buffer grows: Faust lets agents run within a poll, often behind its first record."""
    queue, size = stream.channel.queue, -1
    while size < queue.qsize():
        size = queue.qsize()
        await asyncio.sleep(0)


def take_waiting(app: Any, stream: Any) -> list[Any]:
    """Return the events that lie in a stream's buffer already, as the stream itself would yield them one by one.

    It yields none that came before the last rebalance, and Faust waits for those that it has yielded.
    """
    queue, consumer, out = stream.channel.queue, app.consumer, []
    while queue.qsize() and not queue._errors:
        event = queue.get_nowait()
        message = event.message
        if app.flow_control.is_active() and message.generation_id == app.consumer_generation_id:
            if not message.tracked:
                message.tracked = True
                consumer.track_message(message)
            out.append(event)
    return out


def pieces(messages: Sequence[Any], codec: Codec) -> Iterator[list[Any]]:
    """Yield messages of one topic that are processed together: of one partition, in their order, and bounded.

    A message that needs the registry is alone: it may wait, and nothing waits with it. Those from before a rebalance
    are apart: they are read again.
    """
    of_partition: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for message in messages:
        of_partition[message.partition, message.generation_id].append(message)
    for of_one in of_partition.values():
        piece: list[Any] = []
        size = 0
        for message in of_one:
            is_single = message.topic not in TOGETHER or not codec.decodes_at_once(message.value)
            size += len(message.value or b"")
            if piece and (is_single or size > MOST_BYTES):
                yield piece
                piece, size = [], len(message.value or b"")
            piece.append(message)
            if is_single:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece
