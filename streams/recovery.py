"""The fix for faust-streaming#596, applied to the one Faust version whose recovery we have read.

After table recovery Faust resumes the input partitions, seeks them to their committed offsets, and only then clears
what was fetched in between. Those records are skipped for good, or the committed offset freezes (4 of 11 restarts).
Stopping the flow first closes the gap: nothing is fetched before the seek, and the method itself resumes the flow.

Where nothing is committed yet, Faust seeks nowhere: what was fetched before, and cleared, is skipped. So a worker that
died before its first commit of a partition lost that partition's first records (a kill campaign found it). Those
partitions are read from their beginning; state knows what it has seen.
"""

from __future__ import annotations

from collections.abc import Collection
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


def guard_recovery(app: Any) -> None:
    """Wrap `app`'s Recovery.on_recovery_completed so that the flow is stopped before partitions resume, and every
    partition is read from where it should be.

    Call once, before the app starts. Raises UnsupportedFaust.
    """
    check_faust_version()
    recovery = app.tables.recovery
    completed = recovery.on_recovery_completed

    async def on_recovery_completed(generation_id: int = 0) -> None:
        app.consumer.stop_flow()
        if app.consumer.assignment():
            await seek_uncommitted(app.consumer, app.tables.changelog_topics)
        await completed(generation_id)

    recovery.on_recovery_completed = on_recovery_completed


async def seek_uncommitted(consumer: Any, changelogs: Collection[str]) -> None:
    """Go to the beginning of every input partition without a committed offset (0 is one, Faust does not seek to it)."""
    committed = await consumer.seek_to_committed()
    new = [tp for tp, offset in committed.items() if not offset or offset < 0]
    unread = [tp for tp in new if tp.topic not in changelogs]
    if unread:
        for tp, offset in (await consumer.earliest_offsets(*unread)).items():
            await consumer.seek(tp, offset)
