"""Strings of another process behind pointers, each kept once.

A pointer can come to mean something else (a module is unloaded, a marker's text freed), so one that was seen before is
compared with what it meant, all of a buffer's pointers in one read.
"""

from __future__ import annotations

import numpy as np

from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.schemas.columns import Array

#: Read of a string whose length is not known yet; bytes.
_GUESS = 256
_PAGE = 4096
#: Pointers remembered, and words where they are trimmed; more are forgotten all at once (marker texts get a new pointer
#: each time).
_MOST = 1 << 15


class StringCache:
    """`words`: every string met, word 0 is "" (also what a null or an unreadable pointer means). Append-only until
    `trim`. `unreadable`: pointers that led nowhere, so far."""

    def __init__(self, memory: RemoteMemory) -> None:
        self.words: list[str] = [""]
        self.unreadable = 0
        self._memory = memory
        self._of_word: dict[str, int] = {"": 0}
        self._of_pointer: dict[int, tuple[int, bytes]] = {}

    def indices(self, pointers: Array) -> Array:
        """Index into `words` of the string behind each pointer (u8): u4. Raises NotAllowed."""
        if len(pointers) == 0:
            return np.empty(0, np.uint32)
        unique, inverse = np.unique(pointers, return_inverse=True)
        if len(self._of_pointer) > _MOST:
            self._of_pointer.clear()
        self._verify([int(p) for p in unique if int(p) in self._of_pointer])
        self._learn([int(p) for p in unique if p and int(p) not in self._of_pointer])
        found = np.array([self._of_pointer.get(int(p), (0, b""))[0] for p in unique], np.uint32)
        return found[inverse]

    def index(self, word: str) -> int:
        """Index of a string, which becomes a word if it is none yet."""
        at = self._of_word.setdefault(word, len(self.words))
        if at == len(self.words):
            self.words.append(word)
        return at

    def trim(self) -> None:
        """Forget all words where there are very many: each step of a job that names its steps is one more, for weeks.
        Indices into the old list stay with it: for strings whose tables are copied before the next ones are met."""
        if len(self.words) > _MOST:
            self.words, self._of_word = [""], {"": 0}
            self._of_pointer.clear()

    def _verify(self, pointers: list[int]) -> None:
        expected = [self._of_pointer[p][1] for p in pointers]
        sizes = np.array([len(e) for e in expected], np.int64)
        data, offsets, readable = self._memory.read(np.array(pointers, np.uint64), sizes)
        blob = data.tobytes()
        if blob == b"".join(expected) and readable.all():
            return
        for i, pointer in enumerate(pointers):
            if not readable[i] or blob[offsets[i] : offsets[i + 1]] != expected[i]:
                del self._of_pointer[pointer]

    def _learn(self, pointers: list[int]) -> None:
        if not pointers:
            return
        addresses = np.array(pointers, np.uint64)
        sizes = np.minimum(_GUESS, _PAGE - (addresses % np.uint64(_PAGE)).astype(np.int64))
        data, offsets, readable = self._memory.read(addresses, sizes)
        blob = data.tobytes()
        for i, pointer in enumerate(pointers):
            end = blob.find(b"\0", offsets[i], offsets[i + 1]) if readable[i] else -1
            text = blob[offsets[i] : end] if end >= 0 else self._memory.text(pointer)
            if text is None:
                self.unreadable += 1
                continue
            self._of_pointer[pointer] = (self.index(text.decode(errors="replace")), text + b"\0")
