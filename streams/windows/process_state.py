"""The state of one process in one windows stage, besides its panes: identity, watermark, counts, windows, names.

Keys of the store:

- p|process|run_key: a `ProcessState`.
- n|chunk|process|run_key: the names that group ids stand for.
- w|pane|process|run_key: a pane (panes.py).
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.envelope import IDENTITY
from drumline.streams.core.batch_dedup import CONTENT, AppliedBatches
from drumline.streams.core.records import key, pack_rows, unpack_rows

Store = MutableMapping[str, bytes]
#: Kinds of keys as a checkpoint writes them (worker/partition_store.py): panes need the names of their ids, and the
#: offset of a process says that its panes are written.
CHECKPOINT_KINDS = "nwp"
_WINDOW = np.dtype([("start", "<i8"), ("revision", "<u4"), ("dirty", "u1")])
#: A process's value: its windows (_WINDOW), then the content of its newest batches (CONTENT).
_BYTE: np.dtype[Any] = np.dtype("u1")
#: Names of a process that get an id of their own, and bytes of them; the others share the id of OTHER.
MAX_NAMES = 4096
MAX_NAME_BYTES = 4 << 20
_CHUNK_BYTES = 128 << 10
OTHER = "(other)"


@dataclass(slots=True)
class RollingWindow:
    """Tracks the emissions of one window.

    Attributes:
        revision: of its next emission.
        dirty: it has changes that are not acknowledged.
        changes: number of changes since the stage was built.
        in_flight: `changes` at the emission that is in flight, -1 = none is.
    """

    revision: int = 0
    dirty: bool = False
    changes: int = 0
    in_flight: int = -1


class Names:
    """Maps texts of one process to ids; it only grows, and is stored in chunks.

    `texts`: id -> text.
    """

    def __init__(self, store: Store, process: str, run_key: str) -> None:
        self._store, self._process, self._run_key = store, process, run_key
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}
        self._chunk: list[str] = []
        self._chunks, self._bytes, self._chunk_bytes = 0, 0, 0
        while (data := store.get(self._key(self._chunks))) is not None:
            self._chunk = json.loads(data)
            for text in self._chunk:
                self._add(text)
            self._chunks += 1
        self._chunk_bytes = sum(len(text.encode()) for text in self._chunk)

    def ids(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the id of each text; new texts are stored first."""
        new = [text for text in dict.fromkeys(texts) if text not in self._ids]
        if new:
            self._grow(new)
        other = self._ids.get(OTHER, 0)
        return np.array([self._ids.get(text, other) for text in texts], np.uint32)

    def drop(self) -> None:
        """Delete the stored names."""
        for chunk in range(self._chunks):
            self._store.pop(self._key(chunk), None)

    def _grow(self, new: list[str]) -> None:
        for text in new:
            if len(self.texts) >= MAX_NAMES or self._bytes + len(text.encode()) > MAX_NAME_BYTES:
                text = OTHER
                if text in self._ids:
                    continue
            if self._chunks == 0 or self._chunk_bytes > _CHUNK_BYTES:
                self._chunk, self._chunk_bytes = [], 0
                self._chunks += 1
            self._chunk.append(text)
            self._chunk_bytes += len(text.encode())
            self._add(text)
            if self._chunk_bytes > _CHUNK_BYTES:
                self._save()
        self._save()

    def _save(self) -> None:
        self._store[self._key(self._chunks - 1)] = json.dumps(self._chunk).encode()

    def _add(self, text: str) -> None:
        self._ids[text] = len(self.texts)
        self.texts.append(text)
        self._bytes += len(text.encode())

    def _key(self, chunk: int) -> str:
        return key("n", chunk, self._process, self._run_key)


@dataclass(slots=True)
class ProcessState:
    """Holds the state of one process; the stage stores it after each batch.

    Attributes:
        identity: envelope fields that identify the process.
        offset: last source offset applied.
        late: number of late rows so far; `late_published`: the number that was published last.
        sequence: of the next batch to emit.
        sent: sequence of the first batch that is not acknowledged. Only `sent` is stored, so a crash may repeat a
            number but never leaves a gap.
        seen_ns: worker's clock at the last batch, 0 = none since the restart.
        windows, panes: by start in ns.
        late_in_flight: a batch without rows, with `late` only, is in flight.
        applied: the source batches that were applied.
    """

    process: str
    run_key: str
    names: Names
    identity: dict[str, Any]
    offset: int = -1
    watermark_ns: int = 0
    late: int = 0
    late_published: int = 0
    sequence: int = 0
    sent: int = 0
    seen_ns: int = 0
    windows: dict[int, RollingWindow] = field(default_factory=dict)
    panes: set[int] = field(default_factory=set)
    late_in_flight: bool = False
    applied: AppliedBatches = field(default_factory=AppliedBatches)

    @property
    def dirty(self) -> list[int]:
        """Return the windows to emit, oldest first, without those in flight."""
        return sorted(w for w, window in self.windows.items() if window.dirty and window.in_flight < 0)

    def pane_key(self, pane: int) -> str:
        """Return the store's key of a pane."""
        return key("w", pane, self.process, self.run_key)

    def touch(self, windows: range) -> None:
        """Mark windows as changed."""
        for start in windows:
            window = self.windows.setdefault(start, RollingWindow())
            window.dirty = True
            window.changes += 1

    def save(self, store: Store) -> None:
        """Write the state of the process, without its panes."""
        head: dict[str, Any] = {
            "watermark": self.watermark_ns,
            "late": self.late,
            "late_published": self.late_published,
        }
        head.update(sent=self.sent, identity=self.identity, applied=self.applied.runs, windows=len(self.windows))
        rows = np.zeros(len(self.windows), _WINDOW)
        rows["start"] = list(self.windows)
        rows["revision"] = [window.revision for window in self.windows.values()]
        rows["dirty"] = [window.dirty for window in self.windows.values()]
        values = np.frombuffer(rows.tobytes() + self.applied.contents.tobytes(), _BYTE)
        store[key("p", self.process, self.run_key)] = pack_rows(self.offset, head, values)


def identity_of(batch: Batch) -> dict[str, Any]:
    """Return the identity fields of a batch's envelope."""
    return {name: batch.envelope[name] for name in IDENTITY}


def load_process(store: Store, process: str, run_key: str, names: Names) -> ProcessState:
    """Return the stored state of a process, or a new one. The stage fills in `panes`."""
    data = store.get(key("p", process, run_key))
    state = ProcessState(process, run_key, names, {})
    if data is None:
        return state
    record = unpack_rows(data, _BYTE)
    head = record.head
    state.identity, state.offset, state.watermark_ns = head["identity"], record.offset, head["watermark"]
    state.late, state.late_published, state.sent = head["late"], head["late_published"], head["sent"]
    state.sequence = state.sent
    size = head["windows"] * _WINDOW.itemsize
    state.applied = AppliedBatches(head["applied"], record.rows[size:].view(CONTENT))
    for start, revision, dirty in record.rows[:size].view(_WINDOW).tolist():
        state.windows[start] = RollingWindow(revision, bool(dirty))
    return state
