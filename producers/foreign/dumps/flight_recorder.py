"""Reads dumps of PyTorch's Flight Recorder, as pickle or JSON, of versions 2.0 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from drumline.producers.foreign.dumps.bounded_values import BadDump, read_values
from drumline.producers.foreign.dumps.dumped_calls import (
    RECEIVE,
    SEND,
    DumpedCall,
    GroupName,
    RankDump,
    StackFrame,
)

#: Defects of one file that are named one by one, and frames of a stack that are kept.
MOST_DEFECTS, MOST_FRAMES = 5, 64
#: "nccl:all_reduce", "nccl:send 1->0", "nccl:recv 0<-1".
_OPERATION = re.compile(r"(?:(\w+):)?(\S+)(?: \d+(?:->|<-)(\d{1,9}))?")
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.\D\w*)*$")
_BIGGEST = 1 << 62

_Value = TypeVar("_Value")


class _Unusable(ValueError):
    """A value is not what its field has."""


def read_flight_recorder(path: Path) -> RankDump:
    """Return what the dump of one rank holds. Raises BadDump with the reason for a file that has no usable call."""
    values = read_values(path)
    if not {"entries", "pg_config", "pg_status"} & values.keys():
        raise BadDump(f"{path}: has neither entries nor pg_config, so it is no dump of the Flight Recorder")
    defects: list[str] = []
    version = values.get("version")
    version = version if isinstance(version, str) else ""
    if version.partition(".")[0] in ("0", "1"):
        raise BadDump(f"{path}: is of version {version[:20]}; drumline reads 2.0 and later, of PyTorch 2.4 and later")
    entries = values.get("entries", [])  # JSON leaves out an empty list
    if not isinstance(entries, list):
        raise BadDump(f"{path}: its entries are no list")
    kept, by_retired = _Kept(), not any(map(_is_completed, entries))
    calls = []
    for position, entry in enumerate(entries):
        try:
            calls.append(_call(entry, kept, by_retired, partial(_note, defects, position)))
        except _Unusable as error:
            defects.append(f"entry {position} is left out: {error}")
    if entries and not calls:
        raise BadDump(f"{path}: none of its {len(entries):,} entries can be used; {defects[0]}")
    if len(defects) > MOST_DEFECTS:
        defects[MOST_DEFECTS:] = [f"{len(defects) - MOST_DEFECTS:,} more values of it cannot be used"]
    calls.sort(key=lambda call: call.record)
    groups = _groups(values.get("pg_config"), defects)
    return RankDump(path, _rank(path, values), version, groups, tuple(calls), tuple(defects))


def _note(defects: list[str], position: int, text: str) -> None:
    defects.append(f"entry {position}: {text}")


def _rank(path: Path, values: dict[str, Any]) -> int:
    rank = values.get("rank")
    if type(rank) is int and 0 <= rank < _BIGGEST:
        return rank
    match = _RANK_IN_NAME.search(path.name)
    if match is None or len(match[1]) > 9:
        raise BadDump(f"{path}: has no rank; end its name with the rank, as in nccl_trace_rank_3")
    return int(match[1])


def _groups(config: Any, defects: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the process groups that a dump lists; their texts are JSON lists."""
    groups = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        try:
            listed = json.loads(ranks) if isinstance(ranks, str) and len(ranks) < 1 << 24 else ranks
        except ValueError:
            listed = None
        if isinstance(name, str) and isinstance(listed, list) and all(type(rank) is int for rank in listed):
            groups[name] = tuple(listed)
        else:
            defects.append(f"pg_config: the ranks of process group {str(name)[:50]!r} are not a list of numbers")
    return groups


class _Kept:
    """Keeps equal stacks, shapes and names of a dump once: it has few of them."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def once(self, value: _Value) -> _Value:
        """Return the first value that equals this one."""
        kept: _Value = self.values.setdefault(value, value)
        return kept


def _is_completed(entry: Any) -> bool:
    return isinstance(entry, dict) and (
        entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
    )


def _call(entry: Any, kept: _Kept, by_retired: bool, note: Callable[[str], None]) -> DumpedCall:
    """Return one entry as a call; `note` takes what is odd about it. Raises _Unusable where it cannot be placed.

    `by_retired`: no call of the dump is marked as completed, as Gloo's never are, so that those that are retired have
    ended. Elsewhere a call that is retired and not completed has timed out.
    """
    if not isinstance(entry, dict):
        raise _Unusable("it is no mapping")
    match = _OPERATION.fullmatch(_text(entry, "profiling_name"))
    if match is None:
        raise _Unusable("profiling_name is no operation")
    backend, operation, peer = match.groups()
    is_peer = operation in (SEND, RECEIVE)
    is_point_to_point = is_peer or entry.get("is_p2p") is True
    started, completed = (_time(entry, f"time_discovered_{name}_ns", note) for name in ("started", "completed"))
    state = entry.get("state")
    has_ended = state == "completed" or completed > 0 or (by_retired and entry.get("retired") is True)
    return DumpedCall(
        group=kept.once(_group(entry.get("process_group"))),
        backend=kept.once(backend or ""),
        operation=kept.once(operation),
        peer=int(peer) if is_peer and peer else -1,
        number=_number(entry, "p2p_seq_id" if is_point_to_point else "collective_seq_id"),
        record=_number(entry, "record_id"),
        is_point_to_point=is_point_to_point,
        has_started=state == "started" or started > 0,
        has_ended=has_ended,
        is_retired=entry.get("retired") is True,
        created_ns=_time(entry, "time_created_ns", note),
        timeout_ms=_time(entry, "timeout_ms", note),
        sizes_in=kept.once(_shapes(entry.get("input_sizes"))),
        sizes_out=kept.once(_shapes(entry.get("output_sizes"))),
        types_in=kept.once(_texts(entry.get("input_dtypes"))),
        types_out=kept.once(_texts(entry.get("output_dtypes"))),
        frames=kept.once(_frames(entry.get("frames"), kept)),
    )


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise _Unusable(f"{name} is no text")
    return value


def _number(entry: dict[str, Any], name: str) -> int:
    value = entry.get(name)
    if type(value) is not int or not 0 <= value < _BIGGEST:
        raise _Unusable(f"{name} is no whole number")
    return value


def _time(entry: dict[str, Any], name: str, note: Callable[[str], None]) -> int:
    """Return a time; 0 for none, and for what is none."""
    value = entry.get(name)
    if type(value) is int and 0 <= value < _BIGGEST:
        return value
    if value is not None:
        note(f"{name} is no time, and is left out")
    return 0


def _group(value: Any) -> GroupName:
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return GroupName(value[0], "" if value[1] == "undefined" else value[1])
    raise _Unusable("process_group is no pair of name and description")


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return shapes of tensors; () for what is none."""
    if not isinstance(value, list | tuple) or not all(isinstance(shape, list | tuple) for shape in value):
        return ()
    shapes = tuple(tuple(shape) for shape in value)
    return shapes if all(type(size) is int and 0 <= size < _BIGGEST for shape in shapes for size in shape) else ()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list | tuple) else ()


def _frames(value: Any, kept: _Kept) -> tuple[StackFrame, ...]:
    """Return the innermost frames of a stack."""
    frames = []
    for frame in value[:MOST_FRAMES] if isinstance(value, list) else ():
        if isinstance(frame, dict):
            function, file, line = (frame.get(name) for name in ("name", "filename", "line"))
            if isinstance(function, str) and isinstance(file, str) and type(line) is int:
                frames.append(kept.once(StackFrame(function, file, line)))
    return tuple(frames)
