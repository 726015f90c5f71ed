"""What is known of one process in one stage besides its panes: identity, watermark, counts, windows, names.

Keys: p|process|run: this. n|chunk|process|run: names that group ids stand for. w|pane|process|run: a pane.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.model import IDENTITY
from drumline.streams.core.batch_dedup import Sequences
from drumline.streams.core.records import key, pack_rows, unpack_rows

Store = MutableMapping[str, bytes]
_WINDOW = np.dtype([("start", "<i8"), ("revision", "<u4"), ("dirty", "u1")])
_PANE = np.dtype([("start", "<i8")])
#: Names of a process that get an id of their own, and how many bytes of them; the others share one.
MAX_NAMES = 4096
MAX_NAME_BYTES = 4 << 20
_CHUNK_BYTES = 128 << 10
OTHER = "(other)"


@dataclass(slots=True)
class Window:
    """`revision`: of its next emission. `dirty`: changed since its last. `changes`: how often since this stage was
    built; `handed`: `changes` when it was handed out, -1 when it is not on its way."""

    revision: int = 0
    dirty: bool = False
    changes: int = 0
    handed: int = -1


class Names:
    """Text -> id, as many ids as there were different texts; grows only, and is stored in chunks."""

    def __init__(self, store: Store, process: str, run: str) -> None:
        self._store, self._process, self._run = store, process, run
        self.words: list[str] = []
        self._ids: dict[str, int] = {}
        self._chunk: list[str] = []
        self._chunks, self._bytes, self._chunk_bytes = 0, 0, 0
        while (data := store.get(self._key(self._chunks))) is not None:
            self._chunk = json.loads(data)
            for word in self._chunk:
                self._add(word)
            self._chunks += 1
        self._chunk_bytes = sum(len(word.encode()) for word in self._chunk)

    def ids(self, words: list[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The id of each word; new ones are stored first."""
        new = [word for word in dict.fromkeys(words) if word not in self._ids]
        if new:
            self._grow(new)
        other = self._ids.get(OTHER, 0)
        return np.array([self._ids.get(word, other) for word in words], np.uint32)

    def drop(self) -> None:
        for chunk in range(self._chunks):
            self._store.pop(self._key(chunk), None)

    def _grow(self, new: list[str]) -> None:
        for word in new:
            if len(self.words) >= MAX_NAMES or self._bytes + len(word.encode()) > MAX_NAME_BYTES:
                word = OTHER
                if word in self._ids:
                    continue
            if self._chunks == 0 or self._chunk_bytes > _CHUNK_BYTES:
                self._chunk, self._chunk_bytes = [], 0
                self._chunks += 1
            self._chunk.append(word)
            self._chunk_bytes += len(word.encode())
            self._add(word)
            if self._chunk_bytes > _CHUNK_BYTES:
                self._save()
        self._save()

    def _save(self) -> None:
        self._store[self._key(self._chunks - 1)] = json.dumps(self._chunk).encode()

    def _add(self, word: str) -> None:
        self._ids[word] = len(self.words)
        self.words.append(word)
        self._bytes += len(word.encode())

    def _key(self, chunk: int) -> str:
        return key("n", chunk, self._process, self._run)


@dataclass(slots=True)
class Progress:
    """`offset`: last source offset applied. `late`: rows that came too late, so far; `late_said`: as last emitted.
    `sequence`: of the next batch to emit; `sent`: of the first that the broker has not acknowledged. Only that is
    stored, so a crash may repeat a number but never leaves a gap. `seen_ns`: worker's clock at the last batch, 0 = not
    since a restart. `applied`: sequence numbers of the source batches that are in."""

    process: str
    run: str
    names: Names
    identity: dict[str, Any]
    offset: int = -1
    watermark_ns: int = 0
    late: int = 0
    late_said: int = 0
    sequence: int = 0
    sent: int = 0
    seen_ns: int = 0
    windows: dict[int, Window] = field(default_factory=dict)
    panes: set[int] = field(default_factory=set)
    late_handed: bool = False
    applied: Sequences = field(default_factory=Sequences)

    @property
    def dirty(self) -> list[int]:
        """Windows to emit, oldest first; not those that are on their way."""
        return sorted(w for w, window in self.windows.items() if window.dirty and window.handed < 0)

    def pane_key(self, pane: int) -> str:
        return key("w", pane, self.process, self.run)

    def touch(self, windows: range) -> None:
        for start in windows:
            window = self.windows.setdefault(start, Window())
            window.dirty = True
            window.changes += 1

    def save(self, store: Store) -> None:
        head: dict[str, Any] = {"watermark": self.watermark_ns, "late": self.late, "said": self.late_said}
        head.update(sent=self.sent, identity=self.identity, applied=self.applied.runs)
        rows = np.zeros(len(self.windows), _WINDOW)
        rows["start"] = list(self.windows)
        rows["revision"] = [window.revision for window in self.windows.values()]
        rows["dirty"] = [window.dirty for window in self.windows.values()]
        store[key("p", self.process, self.run)] = pack_rows(self.offset, head, rows)


def identity_of(batch: Batch) -> dict[str, Any]:
    return {name: batch.envelope[name] for name in IDENTITY}


def load(store: Store, process: str, run: str, names: Names) -> Progress:
    """A process as its state value says; a new one if there is none. Its panes are found by the stage."""
    data = store.get(key("p", process, run))
    progress = Progress(process, run, names, {})
    if data is None:
        return progress
    packed = unpack_rows(data, _WINDOW)
    head = packed.head
    progress.identity, progress.offset, progress.watermark_ns = head["identity"], packed.offset, head["watermark"]
    progress.late, progress.late_said, progress.sent = head["late"], head["said"], head["sent"]
    progress.sequence = progress.sent
    progress.applied = Sequences(head["applied"])
    for start, revision, dirty in packed.rows.tolist():
        progress.windows[start] = Window(revision, bool(dirty))
    return progress
