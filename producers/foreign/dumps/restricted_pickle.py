"""Reads pickles of containers, texts and numbers, and of nothing else.

A pickle is a program. Of its instructions this reader has those alone that make plain values: none names a class, calls
anything, or sets attributes. It is Python's reader in Python: the one in C reserves as many places as the largest
number of a memo in the file, which lets a file of 20 bytes take 64 GB.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

#: Reads of one file, one or two an instruction; an instruction makes at most one value, of some 100 bytes. A dump of
#: 20,000 entries takes 4 million.
MOST_READS = 10_000_000
#: Instructions of plain values: what PyTorch and Python write for them in protocols 2 to 5.
PLAIN = frozenset(
    b"".join(
        (
            pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
            pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE,
            pickle.SHORT_BINUNICODE, pickle.BINUNICODE8, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE,
            pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS, pickle.TUPLE, pickle.TUPLE1,
            pickle.TUPLE2, pickle.TUPLE3, pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET,
            pickle.LONG_BINGET,
        )
    )
)  # fmt: skip
#: They name a class or call one; a message names them so.
_EXECUTING = {
    code[0]: name
    for name, code in vars(pickle).items()
    if name in {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID",
                "BINPERSID", "EXT1", "EXT2", "EXT4"}
}  # fmt: skip


class BadPickle(ValueError):
    """A pickle is damaged, or holds more than plain values; the text has the reason."""


def unpickle(data: bytes) -> Any:
    """Return the value of a pickle of plain values. Raises BadPickle for a damaged, hostile or too large one."""
    try:
        return _PlainUnpickler(_BoundedReader(data)).load()
    except BadPickle:
        raise
    except Exception as error:  # a damaged pickle raises whatever the instruction at its end does
        reason = "its end is missing" if isinstance(error, EOFError) or not data.endswith(pickle.STOP) else error
        raise BadPickle(
            f"the pickle of {len(data):,} bytes is damaged ({reason}); the process may have ended while it wrote it"
        ) from None


def _reject(code: int, _: object) -> NoReturn:
    if name := _EXECUTING.get(code):
        raise BadPickle(
            f"its instruction {name} would run code or make an object of a class; dumps have plain values only, so "
            "nothing of it was executed"
        )
    raise BadPickle(f"its instruction {code:#04x} is none that a dump has: the file is damaged, or no dump")


def _skip_size(unpickler: Any) -> None:
    """Leave out the size of a frame: its content is read like everything else, and counted."""
    unpickler.read(8)


def _set_plain(unpickler: Any, code: int) -> None:
    """Set values of a mapping. Raises BadPickle for other keys: to hash tuples in tuples can end the process."""
    keys = unpickler.stack[::2] if code == pickle.SETITEMS[0] else unpickler.stack[-2:-1]
    if not all(type(key) in (str, int) for key in keys):
        raise BadPickle("a mapping has a key that is neither text nor a whole number")
    pickle._Unpickler.dispatch[code](unpickler)


class _BoundedReader(io.BytesIO):
    """Counts reads."""

    _left = MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes. Raises BadPickle after too many reads."""
        self._left -= 1
        if self._left < 0:
            raise BadPickle(f"it takes more than {MOST_READS:,} reads; make it with a smaller TORCH_FR_BUFFER_SIZE")
        return super().read(size)


class _PlainUnpickler(pickle._Unpickler):
    """Has the instructions of plain values, and bounds their number."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Raise BadPickle; no instruction that is left gets to it."""
        raise BadPickle(f"it names the class {module}.{name}, and dumps have plain values only")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Raise BadPickle; no instruction that is left gets to it."""
        raise BadPickle("it refers to an object outside of the file, and dumps have plain values only")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: partial(_reject, code) for code in range(256)},
        **{code: action for code, action in pickle._Unpickler.dispatch.items() if code in PLAIN},
        pickle.FRAME[0]: _skip_size,
        **{code: partial(_set_plain, code=code) for code in (pickle.SETITEM[0], pickle.SETITEMS[0])},
    }
