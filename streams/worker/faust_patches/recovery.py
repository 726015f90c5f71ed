"""Fix faust-streaming#596 in the one Faust version whose recovery this code was written for.

After table recovery Faust resumes the input partitions, seeks them to their committed offsets, and only then clears the
records fetched in between. Those records are skipped for ever, or the committed offset freezes (4 of 11 restarts).
Stopping the flow first closes the gap: nothing is fetched before the seek, and the method itself resumes the flow.

Where nothing is committed yet, Faust does not seek, and records that were fetched before, and cleared, are skipped. A
worker that died before its first commit of a partition lost that partition's first records (a chaos run showed it).
Such partitions are read from their beginning; the state filters repeated records. So are partitions of a recreated
topic: the commit may be an offset of the former topic, which its last worker committed late.

A fetch that is in flight when the flow is stopped continues for up to a second. Its set of partitions is Faust's own,
which is emptied meanwhile, and to aiokafka an empty set means all partitions. So it takes any records, the first
changelog records after recovery's seek among them. Faust drops them, since the flow is stopped, and never reads them
again: recovery then waited for ever for a changelog's end, or accepted state older than the commit (4 of 65 times that
a worker joined and left again, on a local broker). So the consumer's thread seeks back behind the records of such a
fetch; and from recovery's seek on, the flow is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import version
from typing import Any

import structlog

from drumline.schemas.topics import Topic

log = structlog.get_logger()
FAUST_VERSION = "0.15.3"
#: aiokafka itself waits 40 s for a leader, longer than a rebalance may take.
FIRST_OFFSETS_S = 5.0
#: Takes a topic's partition and the offsets of its records that Kafka deleted before they were processed.
Expired = Callable[[Any, range], None]


class UnsupportedFaust(RuntimeError):
    """Fatal: the installed faust-streaming is another version than the recovery fix was written for."""


def check_faust_version() -> None:
    """Raise UnsupportedFaust unless the installed version is the pinned one."""
    installed = version("faust-streaming")
    if installed != FAUST_VERSION:
        raise UnsupportedFaust(
            f"faust-streaming {installed} is installed, {FAUST_VERSION} is needed: its table recovery is wrapped "
            "(streams/worker/faust_patches/recovery.py). Read Recovery.on_recovery_completed of the new version, then "
            "change the pin."
        )


def guard_recovery(
    app: Any, replaced: Callable[[Any], bool], holds_all: Callable[[], Awaitable[bool]], expired: Expired
) -> None:
    """Wrap `app`'s recovery, so that every partition is read from the right offset, and changelogs completely.

    `replaced`: returns True if a partition belongs to another topic than the recovered state. `holds_all`: returns
    False if another writer has one of the changelogs; then recovery is not completed (fencing.py). `expired`: takes
    what Kafka deleted behind a commit. Call once, before the app starts. Raises UnsupportedFaust.
    """
    check_faust_version()
    _seek_where_it_fetches(app.consumer)
    _give_back(app.consumer)
    _of_this_generation(app)
    recovery = app.tables.recovery
    seek, completed = recovery._seek_offsets, recovery.on_recovery_completed

    async def seek_offsets(*arguments: Any) -> None:
        """Stop the flow, then seek.

        A worker without partitions was not stopped when it is given some; nor is one whose last recovery resumes the
        flow in the middle of this rebalance.
        """
        app.consumer.stop_flow()
        await seek(*arguments)

    async def on_recovery_completed(generation_id: int = 0) -> None:
        app.consumer.stop_flow()
        if not await holds_all():
            return
        if app.consumer.assignment():
            await seek_uncommitted(app.consumer, app.tables.changelog_topics, replaced, expired)
        await completed(generation_id)

    recovery._seek_offsets, recovery.on_recovery_completed = seek_offsets, on_recovery_completed


def _seek_where_it_fetches(consumer: Any) -> None:
    """Make aiokafka seek in the consumer's thread.

    Faust seeks in its own thread, while the other is in the middle of a fetch: records disappear that the fetch is
    about to take (KeyError), or a position is set that is being reset, which silently ends all fetching.
    """
    thread = consumer._thread

    async def seek(partition: Any, offset: int) -> None:
        await thread.call_thread(thread.seek, partition, offset)

    consumer._seek = seek


def _give_back(consumer: Any) -> None:
    """Make a fetch that ends while the flow is stopped return nothing and leave every partition where it was."""
    fetch = consumer._thread._fetch_records

    async def fetch_records(client: Any, *arguments: Any, **options: Any) -> Any:
        records = await fetch(client, *arguments, **options)
        if consumer.flow_active:
            return records
        for tp in records.keys() & client.assignment():
            client.seek(tp, records[tp][0].offset)
        return {}

    consumer._thread._fetch_records = fetch_records


def _of_this_generation(app: Any) -> None:
    """Drop changelog records of earlier rebalances from recovery's queue.

    While the queue is full, one more record may wait until the next rebalance; taken for the next of a changelog, it
    would hide those before it.
    """
    queue = app.tables.changelog_queue
    get = queue.get

    async def get_current() -> Any:
        while True:
            event = await get()
            if event.message.generation_id == app.consumer_generation_id:
                return event

    queue.get = get_current


async def seek_uncommitted(
    consumer: Any, changelogs: Collection[str], replaced: Callable[[Any], bool], expired: Expired
) -> None:
    """Seek every input partition without a valid commit to its beginning.

    Invalid: no committed offset (0 is one, but Faust does not seek to it), or one of another topic. The latter is
    committed over, since Faust seeks to the commit once more.
    """
    committed = {tp: at for tp, at in (await consumer.seek_to_committed()).items() if tp.topic not in changelogs}
    new = [tp for tp, offset in committed.items() if not offset or offset < 0]
    foreign = [tp for tp in committed if tp not in new and replaced(tp)]
    first = await consumer.earliest_offsets(*new, *foreign) if new or foreign else {}
    if foreign:
        await consumer._commit({tp: first[tp] for tp in foreign})
    for tp in (*new, *foreign):
        await consumer.seek(tp, first[tp])
    known = {tp: at for tp, at in committed.items() if tp not in first and tp.topic != Topic.TICK}
    if known:
        await _report_expired(consumer, known, expired)


async def _report_expired(consumer: Any, committed: Mapping[Any, int], expired: Expired) -> None:
    """Report records that Kafka has deleted behind a commit: their rows are in no result.

    What is left is committed, so that the next recovery does not count them again. A partition without a leader delays
    recovery for `FIRST_OFFSETS_S` and does not end the worker.
    """
    try:
        first = await asyncio.wait_for(consumer.earliest_offsets(*committed), FIRST_OFFSETS_S)
    except Exception as error:
        log.warning("not known whether records expired", error=repr(error))
        return
    deleted = {tp: range(at, first[tp]) for tp, at in committed.items() if (first.get(tp) or 0) > at}
    for tp, offsets in deleted.items():
        expired(tp, offsets)
    if deleted:
        await consumer._commit({tp: offsets.stop for tp, offsets in deleted.items()})
