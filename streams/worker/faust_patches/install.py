"""Install what a worker changes in Faust and aiokafka, as pinned: all of it, in one place.

A module of this folder has one of these changes, with the defect that it is for. Each is needed: a test of
tests/streams/worker, with Faust and aiokafka as they are, fails without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from drumline.streams.worker.faust_patches.commits import commit_as_member
from drumline.streams.worker.faust_patches.delivery import deliver_at_once
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing
from drumline.streams.worker.faust_patches.fetch import limit_fetch_delay
from drumline.streams.worker.faust_patches.reconnect import slow_down_reconnects
from drumline.streams.worker.faust_patches.recovery import Expired, guard_recovery
from drumline.streams.worker.faust_patches.unpacking import limit_unpacking
from drumline.streams.worker.halts import HaltDetector, report_from_consumer
from drumline.streams.worker.telemetry import Readiness, watch_commits


@dataclass(frozen=True, slots=True)
class Hooks:
    """Holds what the changes of one app report to, and ask.

    `replaced`, `expired`: see `guard_recovery`. `readiness`: gets the times of commits.
    """

    fencing: ChangelogFencing
    halts: HaltDetector
    replaced: Callable[[Any], bool]
    expired: Expired
    readiness: Readiness


def install(app: Any, hooks: Hooks) -> None:
    """Change aiokafka in this process, and `app`. Call once, after its tables were made and before it starts.

    Raises UnsupportedFaust, KeyError and AttributeError where the installed libraries are not those they were made for.
    """
    patches: tuple[Callable[[], None], ...] = (
        slow_down_reconnects,  # one worker makes 53 connections a second to a broker that is down
        limit_unpacking,  # 25 kB of records unpack to gigabytes, and the worker is killed
        commit_as_member,  # a worker that lost its membership commits over its successor, and records are lost
        partial(report_from_consumer, app, hooks.halts),  # a halted worker goes on as if it still had its partitions
        partial(limit_fetch_delay, app),  # a full buffer of one partition leaves the others without work for 0.7 s of 1
        partial(deliver_at_once, app),  # a task for each message costs more than the message does
        # From here on recovery, in the order in which it goes through them: it marks changelogs, then seeks.
        hooks.fencing.watch,  # what a halted worker writes behind its successor is taken for the newest state
        # Records around recovery's seek are skipped for ever (faust-streaming#596).
        partial(guard_recovery, app, hooks.replaced, hooks.fencing.holds_all, hooks.expired),
        partial(watch_commits, app, hooks.readiness, time.monotonic),  # Faust tells its tables alone of a commit
    )
    for patch in patches:
        patch()
