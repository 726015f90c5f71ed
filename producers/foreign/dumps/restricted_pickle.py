"""Reads pickles of containers, texts and numbers, and of nothing else.

A pickle is a program. This reader has those of its instructions alone that make plain values: none names a class, calls
anything, or sets attributes. Python's own reader in C is no basis for it, although it can be kept from classes: it
reserves as many places as the largest number of a memo in the file, so that 20 bytes can take 64 GB, and a mapping's
key of tuples in tuples ends the process.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NoReturn

#: Instructions of one file; each makes at most one value, of some 100 bytes. A dump of 20,000 entries has 2 million.
MOST_INSTRUCTIONS = 10_000_000
#: Instruction -> bytes of the length before a text; value that it puts on the stack; bytes of a whole number.
_TEXTS = {pickle.SHORT_BINUNICODE[0]: 1, pickle.BINUNICODE[0]: 4, pickle.BINUNICODE8[0]: 8}
_CONSTANTS = {pickle.NONE[0]: None, pickle.NEWTRUE[0]: True, pickle.NEWFALSE[0]: False, pickle.EMPTY_TUPLE[0]: ()}
_NUMBERS = {pickle.BININT1[0]: 1, pickle.BININT2[0]: 2}
_TUPLES = {pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}
_GETS = {pickle.BINGET[0]: 1, pickle.LONG_BINGET[0]: 4}
_PUTS = {pickle.BINPUT[0]: 1, pickle.LONG_BINPUT[0]: 4}
#: Instruction without a meaning for values -> bytes to leave out: the protocol, and the size of a frame.
_LEFT_OUT = {pickle.PROTO[0]: 1, pickle.FRAME[0]: 8}
_MARK, _STOP, _LIST, _DICT, _TUPLE, _APPEND, _APPENDS, _SET, _SETS, _INT, _LONG, _FLOAT, _MEMOIZE = (
    code[0]
    for code in (
        pickle.MARK, pickle.STOP, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.TUPLE, pickle.APPEND, pickle.APPENDS,
        pickle.SETITEM, pickle.SETITEMS, pickle.BININT, pickle.LONG1, pickle.BINFLOAT, pickle.MEMOIZE,
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
        return _value(data)
    except BadPickle:
        raise
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error) as error:
        is_cut = not data.endswith(pickle.STOP)
        reason = "its end is missing" if is_cut else f"an instruction does not fit, {type(error).__name__}"
        raise BadPickle(
            f"the pickle of {len(data):,} bytes is damaged ({reason}); the process may have ended while it wrote it"
        ) from None


def _value(data: bytes) -> Any:
    """Run the instructions. Raises what a damaged pickle leads to: a value that is missing, or is of another type."""
    stack: list[Any] = []
    outer: list[list[Any]] = []
    memo: dict[int, Any] = {}
    at = 0
    for _ in range(MOST_INSTRUCTIONS):
        code = data[at]
        at += 1
        if (size := _GETS.get(code)) is not None:
            stack.append(memo[int.from_bytes(data[at : at + size], "little")])
            at += size
        elif (size := _PUTS.get(code)) is not None:
            memo[int.from_bytes(data[at : at + size], "little")] = stack[-1]
            at += size
        elif (size := _NUMBERS.get(code)) is not None:
            stack.append(int.from_bytes(data[at : at + size], "little"))
            at += size
        elif code == _LONG:
            size = data[at]
            at += 1
            stack.append(int.from_bytes(data[at : at + size], "little", signed=True))
            at += size
        elif code == _MARK:
            outer.append(stack)
            stack = []
        elif code in (_SETS, _APPENDS, _TUPLE):
            values = stack
            stack = outer.pop()
            if code == _TUPLE:
                stack.append(tuple(values))
            elif code == _APPENDS:
                _required(stack[-1], list).extend(values)
            else:
                _set(stack[-1], values)
        elif code == _LIST:
            stack.append([])
        elif (size := _TEXTS.get(code)) is not None:
            length = int.from_bytes(data[at : at + size], "little")
            at += size
            stack.append(data[at : at + length].decode("utf-8", "surrogatepass"))
            at += length
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif (count := _TUPLES.get(code)) is not None:
            if len(stack) < count:
                raise IndexError
            stack[-count:] = [tuple(stack[-count:])]
        elif code == _INT:
            stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
            at += 4
        elif code == _DICT:
            stack.append({})
        elif code == _FLOAT:
            stack.append(struct.unpack_from(">d", data, at)[0])
            at += 8
        elif code == _SET:
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif code == _APPEND:
            value = stack.pop()
            _required(stack[-1], list).append(value)
        elif code == _MEMOIZE:
            memo[len(memo)] = stack[-1]
        elif (size := _LEFT_OUT.get(code)) is not None:
            at += size
        elif code == _STOP:
            return stack.pop()
        else:
            _reject(code)
    raise BadPickle(f"it has more than {MOST_INSTRUCTIONS:,} values; make it with a smaller TORCH_FR_BUFFER_SIZE")


def _set(mapping: Any, values: list[Any]) -> None:
    """Set keys and values, in turns. Raises BadPickle for other keys than texts and whole numbers."""
    keys = values[::2]
    if not all(type(key) in (str, int) for key in keys):
        raise BadPickle("a mapping has a key that is neither text nor a whole number")
    _required(mapping, dict).update(zip(keys, values[1::2], strict=True))


def _required(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"no {kind.__name__}")
    return value


def _reject(code: int) -> NoReturn:
    if name := _EXECUTING.get(code):
        raise BadPickle(
            f"its instruction {name} would run code or make an object of a class; dumps have plain values only, so "
            "nothing of it was executed"
        )
    raise BadPickle(f"its instruction {code:#04x} is none that a dump has: the file is damaged, or no dump")
