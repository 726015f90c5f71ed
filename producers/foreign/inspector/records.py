"""One line of an Inspector log, checked: an operation with its times.

Formats 4.0 to 5.x: {"header": {id, rank, n_ranks}, "metadata": {hostname, pid}, "coll_perf" or "p2p_perf": {...}}. Some
collectors write what is in header and metadata beside them, at the top. Times are whole microseconds since the epoch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Key of an operation -> prefix of its fields.
_KINDS = {"coll_perf": "coll", "p2p_perf": "p2p"}
#: The latest time that ns in int64 hold, in us.
_LATEST_US = (1 << 63) / 1000


class BadLine(ValueError):
    """A line is no operation of an Inspector log; the message says why, without the line."""


@dataclass(frozen=True)
class InspectorRecord:
    """Holds an operation of one process.

    Attributes:
        communicator: its hash.
        rank, ranks: of the process in the communicator.
        operation: NCCL's name, such as AllReduce.
        number: of the operation in its communicator, from 0 or 1.
        bytes: message size.
        peer: rank that a send or receive is with; -1 = collective.
        call_us: the host's call; None in logs that are not verbose.
        start_us: the GPU began; None in logs that are not verbose.
        duration_us: time on the GPU.
        host, pid: of the process; "" and 0 = not known.
    """

    communicator: int
    rank: int
    ranks: int
    operation: str
    number: int
    bytes: int
    peer: int
    call_us: float | None
    start_us: float | None
    duration_us: float
    host: str
    pid: int


def read_record(line: str | bytes) -> InspectorRecord | None:
    """Return the operation of a line; None for a line about something else (proxy operations). Raises BadLine."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine("not a JSON object") from None
    if not isinstance(data, dict):
        raise BadLine("not a JSON object")
    kind = next((kind for kind in _KINDS if isinstance(data.get(kind), dict)), None)
    if kind is None:
        return None
    header, facts, operation = (_object(data, name) for name in ("header", "metadata", kind))
    prefix = _KINDS[kind]
    times = _object(operation, "event_trace_ts")
    ranks = _whole(header.get("n_ranks", data.get("n_ranks")), "n_ranks")
    rank = _whole(header.get("rank", data.get("rank")), "rank")
    if not 0 <= rank < ranks:
        raise BadLine(f"rank {rank} of n_ranks {ranks}")
    return InspectorRecord(
        communicator=_hash(header.get("id", data.get("id"))),
        rank=rank,
        ranks=ranks,
        operation=str(operation.get(prefix, "")),
        number=_whole(operation.get(f"{prefix}_sn", 0), f"{prefix}_sn"),
        bytes=_whole(operation.get(f"{prefix}_msg_size_bytes", 0), f"{prefix}_msg_size_bytes"),
        peer=_whole(operation.get("p2p_peer", -1), "p2p_peer", least=-1),
        call_us=_time(times, f"{prefix}_start_ts"),
        start_us=_kernel_start(times),
        duration_us=_number(operation.get(f"{prefix}_exec_time_us"), f"{prefix}_exec_time_us"),
        host=str(facts.get("hostname", data.get("hostname", ""))),
        pid=_whole(facts.get("pid", data.get("pid", 0)), "pid"),
    )


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise BadLine(f"{name} is not a number")
    if not 0 <= value < _LATEST_US:
        raise BadLine(f"{name} is no time")
    return float(value)


def _whole(value: Any, name: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise BadLine(f"{name} is not a whole number from {least}")
    return value


def _hash(value: Any) -> int:
    """Return a communicator's hash, which is a hexadecimal text or a number."""
    try:
        number = int(value, 16) if isinstance(value, str) else _whole(value, "id")
    except ValueError:
        raise BadLine("id is no communicator's hash") from None
    return number & ((1 << 64) - 1)


def _time(times: Mapping[str, Any], name: str) -> float | None:
    """Return a time that was recorded; 0 stands for one that was not."""
    value = times.get(name)
    return _number(value, name) or None if value is not None else None


def _kernel_start(times: Mapping[str, Any]) -> float | None:
    """Return when the first channel began."""
    events = times.get("kernel_events")
    if not isinstance(events, list):
        return None
    starts = [_time(event, "kernel_start_ts") for event in events if isinstance(event, dict)]
    return min((start for start in starts if start is not None), default=None)
