"""Cache of another process's strings, by pointer.

Memory behind a pointer can change (a module is unloaded, a marker's text is freed), so cached pointers are compared
with the memory again, all pointers of a buffer in one read.
"""

from __future__ import annotations

import numpy as np

from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.schemas.bounds.check import CUT_MARK
from drumline.schemas.columns import Array

#: Longest string that is read; bytes. A longer one is cut, and ends with CUT_MARK.
LONGEST = 16_384
#: First read of a string whose length is not known; bytes.
_GUESS = 256
_PAGE = 4096
#: Most pointers, and strings before `trim` drops them; all are dropped at once (each marker text has a new pointer).
_MAX = 1 << 15


class StringCache:
    """Holds each string of a process once, and its index. Owned by Decoder; reading memory may block on page faults.

    `strings`: by index; index 0 is "", also for a null or unreadable pointer. Only appended to until `trim`.
    `unreadable`: count of unreadable pointers. `truncated`: strings that were cut.
    """

    def __init__(self, memory: RemoteMemory) -> None:
        self.strings: list[str] = [""]
        self.unreadable = self.truncated = 0
        self._memory = memory
        self._of_string: dict[str, int] = {"": 0}
        self._of_pointer: dict[int, tuple[int, bytes]] = {}

    def indices(self, pointers: Array) -> Array:
        """Return the index of the string behind each pointer. `pointers`: u8; result: u4. Raises NotAllowed."""
        if len(pointers) == 0:
            return np.empty(0, np.uint32)
        unique, inverse = np.unique(pointers, return_inverse=True)
        if len(self._of_pointer) > _MAX:
            self._of_pointer.clear()
        self._verify([int(p) for p in unique if int(p) in self._of_pointer])
        self._learn([int(p) for p in unique if p and int(p) not in self._of_pointer])
        index = np.array([self._of_pointer.get(int(p), (0, b""))[0] for p in unique], np.uint32)
        return index[inverse]

    def index(self, text: str) -> int:
        """Return the index of a string, which is added if it is new."""
        at = self._of_string.setdefault(text, len(self.strings))
        if at == len(self.strings):
            self.strings.append(text)
        return at

    def trim(self) -> None:
        """Drop all strings if there are too many: a job that names its steps adds one per step, for weeks.

        A list returned before stays valid for its indices, so call it only between tables that share the cache.
        """
        if len(self.strings) > _MAX:
            self.strings, self._of_string = [""], {"": 0}
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
            text = blob[offsets[i] : end] if end >= 0 else self._memory.text(pointer, LONGEST)
            if text is None:
                self.unreadable += 1
                continue
            name, strings = text.decode(errors="replace"), len(self.strings)
            index = self.index(name + CUT_MARK if len(text) >= LONGEST else name)
            self.truncated += len(text) >= LONGEST and index == strings
            self._of_pointer[pointer] = (index, text + b"\0")
