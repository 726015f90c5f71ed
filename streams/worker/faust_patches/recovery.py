"""The fix for faust-streaming#596, applied to the one Faust version whose recovery we have read.

After table recovery Faust resumes the input partitions, seeks them to their committed offsets, and only then clears
what was fetched in between. Those records are skipped for good, or the committed offset freezes (4 of 11 restarts).
Stopping the flow first closes the gap: nothing is fetched before the seek, and the method itself resumes the flow.

Where nothing is committed yet, Faust seeks nowhere, and what was fetched before, and cleared, is skipped: a worker that
died before its first commit of a partition lost that partition's first records (a kill campaign found it). Such
partitions are read from their beginning; state knows what it has seen. Those of a topic that was deleted and created
anew are, too: what is committed may be an offset of the former one, which its last worker committed late.

A fetch that is under way when the flow is stopped goes on for up to a second. Its set of partitions is Faust's own,
which is emptied meanwhile, and to aiokafka an empty one means all: it takes what comes, the first changelog records
after recovery's seek among them. Faust throws them away, since the flow is stopped, and never reads them again:
recovery then waited for ever for a changelog's end, or was content with state older than what is committed (4 of 65
times that a worker joined and left again, on a local broker). So what such a fetch took is given back, in the
consumer's thread, as soon as it has it; and from recovery's seek on, the flow is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import version
from typing import Any

FAUST_VERSION = "0.15.3"


class UnsupportedFaust(RuntimeError):
    """Another faust-streaming than the one that the recovery fix was made for."""


def check_faust_version() -> None:
    """Raises UnsupportedFaust unless the installed version is the pinned one."""
    found = version("faust-streaming")
    if found != FAUST_VERSION:
        raise UnsupportedFaust(
            f"faust-streaming {found} is installed, {FAUST_VERSION} is needed: its table recovery is wrapped "
            "(streams/recovery.py). Read Recovery.on_recovery_completed of the new version, then change the pin."
        )


def guard_recovery(app: Any, replaced: Callable[[Any], bool]) -> None:
    """Wrap what `app`'s recovery calls, so that every partition is read from where it should be, changelogs whole.
    `replaced`: whether a partition is of another topic than the state that was read back.

    Call once, before the app starts. Raises UnsupportedFaust.
    """
    check_faust_version()
    _give_back(app.consumer)
    _of_this_generation(app)
    recovery = app.tables.recovery
    seek, completed = recovery._seek_offsets, recovery.on_recovery_completed

    async def seek_offsets(*arguments: Any) -> None:
        """A worker without partitions was not stopped when it is given some; nor is one whose last recovery resumes the
        flow in the middle of this rebalance."""
        app.consumer.stop_flow()
        await seek(*arguments)

    async def on_recovery_completed(generation_id: int = 0) -> None:
        app.consumer.stop_flow()
        if app.consumer.assignment():
            await seek_uncommitted(app.consumer, app.tables.changelog_topics, replaced)
        await completed(generation_id)

    recovery._seek_offsets, recovery.on_recovery_completed = seek_offsets, on_recovery_completed


def _give_back(consumer: Any) -> None:
    """A fetch that ends while the flow is stopped returns nothing and leaves every partition where it was."""
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
    """What recovery is handed is of this rebalance. While its queue is full, one more record may wait until the next
    rebalance; taken for the next of a changelog, it hides those before it."""
    queue = app.tables.changelog_queue
    get = queue.get

    async def get_current() -> Any:
        while True:
            event = await get()
            if event.message.generation_id == app.consumer_generation_id:
                return event

    queue.get = get_current


async def seek_uncommitted(consumer: Any, changelogs: Collection[str], replaced: Callable[[Any], bool]) -> None:
    """Go to the beginning of every input partition without a committed offset (0 is one, Faust does not seek to it), or
    with one of another topic. That one is committed over, since Faust goes to what is committed once more."""
    committed = {tp: at for tp, at in (await consumer.seek_to_committed()).items() if tp.topic not in changelogs}
    new = [tp for tp, offset in committed.items() if not offset or offset < 0]
    foreign = [tp for tp in committed if tp not in new and replaced(tp)]
    if new or foreign:
        first = await consumer.earliest_offsets(*new, *foreign)
        if foreign:
            await consumer._commit({tp: first[tp] for tp in foreign})
        for tp, offset in first.items():
            await consumer.seek(tp, offset)
