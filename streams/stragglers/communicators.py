"""Ranks and progress of the communicators of one run, in a store of bytes.

Keys: c|communicator|run_key.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from functools import lru_cache

import numpy as np

from drumline.streams.core.records import NO_ROWS, as_json, differs, key, pack_text
from drumline.streams.core.thresholds import StragglerConfig

_NOTHING = np.zeros(0, NO_ROWS)
#: Ranks whose JSON is kept between records.
_SHORT = 256


class Communicators:
    """Keeps the communicators of one run. Used by `JobState`.

    Attributes:
        members: communicator -> its ranks.
        pipelines: communicators in which one rank sends what another receives -> their ranks.
    """

    __slots__ = ("_config", "_run_key", "_store", "_written", "members", "pipelines")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, config: StragglerConfig) -> None:
        self._store, self._run_key, self._config = store, run_key, config
        self.members: dict[str, tuple[int, ...]] = {}
        self.pipelines: dict[str, frozenset[int]] = {}
        self._written: dict[str, tuple[int, tuple[int, ...], int, frozenset[int]]] = {}  # by communicator

    def add(self, communicator: str, ranks: Sequence[int]) -> None:
        """Add ranks to a communicator."""
        members = self.members.get(communicator, ())
        if tuple(ranks) != members:
            self.members[communicator] = tuple(sorted({*members, *ranks}))

    def set_pipeline(self, communicator: str, ranks: Iterable[int]) -> bool:
        """Set the ranks of a pipeline, and return whether they are others than before."""
        known, now = self.pipelines.pop(communicator, frozenset()), frozenset(ranks)
        if now:
            self.pipelines[communicator] = now
        return now != known

    def write(self, communicator: str, complete: int, world_size: int, offset: int) -> None:
        """Store what is known of a communicator, once a block: within one, nothing depends on its progress."""
        members, pipeline = self.members[communicator], self.pipelines.get(communicator, frozenset())
        written = self._config.block_of(complete + 1), members, world_size, pipeline
        if self._written.get(communicator) == written:
            return
        self._written[communicator] = written
        head = b'{"complete":%d,"ranks":%b,"world_size":%d,"pipeline":%b}' % (
            complete, _as_list(members), world_size, _as_list(tuple(sorted(pipeline)))
        )  # fmt: skip
        name, value = key("c", communicator, self._run_key), pack_text(offset, head, _NOTHING)
        if differs(self._store.get(name), value):
            self._store[name] = value

    def forget(self, communicators: Iterable[str]) -> None:
        """Delete what is stored."""
        for communicator in communicators:
            self._store.pop(key("c", communicator, self._run_key), None)


@lru_cache(1 << 12)
def _short_list(ranks: tuple[int, ...]) -> bytes:
    return as_json(ranks)


def _as_list(ranks: tuple[int, ...]) -> bytes:
    """Return ranks as a JSON array; those of a communicator are the same with each record."""
    return _short_list(ranks) if len(ranks) <= _SHORT else as_json(ranks)
