"""Requests about this host's processes, from the records of drumline.control.v1: the newest of each key."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase

from drumline.producers.ipc.control import MAX_REQUESTS
from drumline.schemas.control import MAX_WINDOW_NS, PULL, Control

#: Keys that are remembered: deep windows, then those that end last. Twice as many between two selections.
MOST_KEYS = 4_096


@dataclass(slots=True)
class RequestsInForce:
    """Keeps requests until they end. Pure: time is an argument."""

    _by_key: dict[str, Control] = field(default_factory=dict)

    def take(self, key: str, control: Control | None) -> None:
        """Take the newest record of a key; None, or one that is cleared, ends it."""
        self._by_key.pop(key, None)
        if control is not None and not control.cleared:
            self._by_key[key] = control
            if len(self._by_key) > 2 * MOST_KEYS:
                latest = sorted(self._by_key.items(), key=lambda item: (item[1].kind, item[1].until_ns), reverse=True)
                self._by_key = dict(latest[:MOST_KEYS])

    def concerning_host(self, host: str, jobs: Collection[str], now_ns: int) -> list[Control]:
        """Return what may concern a host that runs these jobs, the newest first: in force now or soon."""
        for key in [key for key, control in self._by_key.items() if control.until_ns <= now_ns]:
            del self._by_key[key]
        concerning = [
            control
            for control in self._by_key.values()
            if control.start_ns - now_ns < MAX_WINDOW_NS
            and fnmatchcase(host, control.host)
            and any(fnmatchcase(job, control.job) for job in jobs)
        ]
        newest = sorted(concerning, key=lambda control: (control.kind, control.requested_ns), reverse=True)
        pulls = [control for control in newest if control.kind == PULL]
        return [control for control in newest if control.kind != PULL][:MAX_REQUESTS] + pulls[:MAX_REQUESTS]


def as_file(controls: Collection[Control]) -> str:
    """Return the text of the file that processes read (producers/ipc/control.py); pulls are the agent's."""
    return json.dumps([asdict(control) for control in controls if control.kind != PULL])
