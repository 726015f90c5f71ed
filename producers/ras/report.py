"""Reads what NCCL's RAS states of a job as JSON, as `ncclras -f json` prints it (NCCL 2.28.7 and later). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Containers and commas of JSON: each makes an object of some 60 bytes.
MOST_VALUES = 10_000_000
#: Defects of an answer that are kept as texts.
MOST_DEFECTS = 5
#: NCCL 2.28.9 forgets the comma in what RAS writes of a missing rank: of the rank that matters.
_MISSING_COMMA = re.compile(rb'("nvml_dev":\s*-?\d+)(\s*"status")')


@dataclass(frozen=True, slots=True)
class RasRank:
    """Holds what RAS has of one rank of a communicator.

    Attributes:
        rank: in the communicator; `device`: of the GPU, as NVML numbers them.
        counts: function -> its collectives that the rank has called; () for a rank that RAS misses.
        error: ncclGetAsyncError's, 0 = none; `starting`: its communicator is still made; `aborted`: it is given up.
        unresponsive, exited: RAS did not reach it; RAS gave it up.
    """

    rank: int
    host: str
    pid: int
    device: int
    counts: tuple[tuple[str, int], ...] = ()
    error: int = 0
    starting: bool = False
    aborted: bool = False
    unresponsive: bool = False
    exited: bool = False

    @property
    def place(self) -> tuple[str, int, int]:
        """Return what is the same for one GPU's process in all its communicators."""
        return self.host, self.pid, self.device

    @property
    def called(self) -> int:
        """Return the number of collectives that it has called."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """Holds a communicator: its name, its size, the ranks that RAS has, and those that it misses."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]
    missing: tuple[RasRank, ...]


@dataclass(frozen=True, slots=True)
class RasReport:
    """Holds one answer of RAS; `timestamp` is the local time of its host."""

    timestamp: str
    communicators: tuple[RasCommunicator, ...]
    defects: tuple[str, ...] = ()


def json_values(data: bytes, most_values: int = MOST_VALUES) -> Any:
    """Return the values of JSON, of RAS's too. Raises ValueError, RecursionError."""
    if sum(map(data.count, (b"[", b"{", b","))) > most_values:
        raise ValueError(f"more than {most_values:,} values")
    try:
        return json.loads(data)
    except json.JSONDecodeError:
        if _MISSING_COMMA.search(data) is None:
            raise
        return json.loads(_MISSING_COMMA.sub(rb"\1,\2", data))


def ras_report(values: Mapping[str, Any]) -> RasReport:
    """Return what RAS states. Raises ValueError with the reason for values that are not its answer."""
    listed = values.get("communicators")
    if not isinstance(listed, list):
        raise ValueError("has no list of communicators; make it with `ncclras -f json`")
    defects: list[str] = []
    communicators = []
    for position, value in enumerate(listed):
        place = f"communicator {position}"
        if not isinstance(value, dict) or type(value.get("size")) is not int or value["size"] < 0:
            _note(defects, f"{place} is left out: it has no size")
            continue
        name = ":".join(str(value[key]) for key in ("hash", "secondary_hash") if isinstance(value.get(key), str))
        ranks = tuple(_ranks(value.get("ranks"), f"{place}, ranks", defects))
        missing = tuple(_ranks(value.get("missing_ranks"), f"{place}, missing_ranks", defects))
        communicators.append(RasCommunicator(name or place, value["size"], ranks, missing))
    if listed and not communicators:
        raise ValueError(f"none of its communicators can be used; {defects[0]}")
    timestamp = values.get("timestamp")
    return RasReport(timestamp if isinstance(timestamp, str) else "", tuple(communicators), tuple(defects))


def _note(defects: list[str], text: str) -> None:
    if len(defects) < MOST_DEFECTS:
        defects.append(text)


def _ranks(values: Any, place: str, defects: list[str]) -> Iterator[RasRank]:
    for position, value in enumerate(values if isinstance(values, list) else ()):
        status = value.get("status") if isinstance(value, dict) else None
        names = ("rank", "pid", "nvml_dev") if isinstance(status, dict) else ()
        numbers = [value[name] for name in names if type(value.get(name)) is int]
        if not isinstance(status, dict) or len(numbers) < 3:
            _note(defects, f"{place}: entry {position} is left out, as its rank, pid, nvml_dev or status is missing")
            continue
        host, counts = value.get("host"), value.get("collective_counts")
        yield RasRank(
            rank=numbers[0],
            host=host if isinstance(host, str) else "unknown",
            pid=numbers[1],
            device=numbers[2],
            counts=tuple(
                (name, count)
                for name, count in (counts.items() if isinstance(counts, dict) else ())
                if type(count) is int and 0 <= count < 1 << 62
            ),
            error=status["async_error"] if type(status.get("async_error")) is int else 0,
            starting=status.get("init_state", 0) != 0,
            aborted=status.get("abort_flag") is True,
            unresponsive=status.get("unresponsive") is True,
            exited=status.get("considered_dead") is True,
        )
