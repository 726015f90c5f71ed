"""The fix for faust-streaming#596, applied to the one Faust version whose recovery we have read.

After table recovery Faust resumes the input partitions, seeks them to their committed offsets, and only then clears
what was fetched in between. Those records are skipped for good, or the committed offset freezes (4 of 11 restarts).
Stopping the flow first closes the gap: nothing is fetched before the seek, and the method itself resumes the flow.
"""

from __future__ import annotations

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
    """Wrap `app`'s Recovery.on_recovery_completed so that the flow is stopped before partitions resume.

    Call once, before the app starts. Raises UnsupportedFaust.
    """
    check_faust_version()
    recovery = app.tables.recovery
    completed = recovery.on_recovery_completed

    async def on_recovery_completed(generation_id: int = 0) -> None:
        app.consumer.stop_flow()
        await completed(generation_id)

    recovery.on_recovery_completed = on_recovery_completed
