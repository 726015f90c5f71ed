"""Requests about this host's processes, from the records of drumline.control.v1: the newest of each key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase

from drumline.producers.ipc.control import MAX_BYTES, MAX_OF_KIND
from drumline.schemas.control import MAX_WINDOW_NS, POLICY, PULL, Control

#: Keys of policies, and of the rest, that are remembered. Twice as many between two selections.
MOST_KEYS = 4_096
#: Bytes of the file that policies may take: half of it is left to windows, however long their lists of ranks are.
POLICY_BYTES = MAX_BYTES // 2


@dataclass(slots=True)
class RequestsInForce:
    """Keeps requests until they end. Pure: time is an argument.

    Kinds have places of their own, and jobs shares of them: no window takes a policy's place, and no job another's.
    """

    _by_key: dict[Hashable, Control] = field(default_factory=dict)

    def take(self, key: Hashable, control: Control | None) -> None:
        """Take the newest record of a key; None, or one that is cleared, ends it."""
        self._by_key.pop(key, None)
        if control is not None and not control.cleared:
            self._by_key[key] = control
            if len(self._by_key) > 4 * MOST_KEYS:
                kept = {id(control) for controls in _by_kind(self._by_key.values(), MOST_KEYS) for control in controls}
                self._by_key = {key: control for key, control in self._by_key.items() if id(control) in kept}

    def concerning_host(self, host: str, jobs: Collection[str], now_ns: int) -> list[Control]:
        """Return what may concern a host that runs these jobs: in force now or soon. Policies first, and of each kind
        the newest of each job before its older ones."""
        for key in [key for key, control in self._by_key.items() if control.until_ns <= now_ns]:
            del self._by_key[key]
        concerning = [
            control
            for control in self._by_key.values()
            if control.start_ns - now_ns < MAX_WINDOW_NS
            and fnmatchcase(host, control.host)
            and any(fnmatchcase(job, control.job) for job in jobs)
        ]
        return [control for controls in _by_kind(concerning, MAX_OF_KIND) for control in controls]


def _by_kind(controls: Iterable[Control], most: int) -> list[list[Control]]:
    """Return at most so many policies, deep windows and requests for times, and pulls."""
    kinds: dict[str, list[Control]] = {POLICY: [], "": [], PULL: []}
    for control in sorted(controls, key=lambda control: control.requested_ns, reverse=True):
        kinds[control.kind if control.kind in kinds else ""].append(control)
    return [_shared(newest_first, most) for newest_first in kinds.values()]


def _shared(newest_first: Iterable[Control], most: int) -> list[Control]:
    """Return at most so many: the newest of each job, then the second ones, and so on."""
    numbers: Counter[str] = Counter()
    by_number: list[tuple[int, int, Control]] = []
    for place, control in enumerate(newest_first):
        by_number.append((numbers[control.job], place, control))
        numbers[control.job] += 1
    return [control for *_, control in sorted(by_number, key=lambda item: item[:2])[:most]]


def as_file(controls: Iterable[Control]) -> tuple[str, int]:
    """Return the text of the file that processes read (producers/ipc/control.py), and how many it has no place for.

    It is as long as they read at most. Pulls are the agent's.
    """
    texts: list[str] = []
    size = left_out = 0
    for control in controls:
        if control.kind == PULL:
            continue
        text = json.dumps(asdict(control))
        if size + len(text) + 2 > (POLICY_BYTES if control.kind == POLICY else MAX_BYTES - 2):
            left_out += 1
            continue
        size += len(text) + 2
        texts.append(text)
    return f"[{', '.join(texts)}]", left_out
