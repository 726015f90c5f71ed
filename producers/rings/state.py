"""State from which a killed agent goes on with a ring, as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OpenStep:
    """The step that the next record lies in; -1 = none. `partial`: some of its rows are published. `paused`: the job
    had switched the recording off in a part of it that is read. `untimed`: its operations have no times of the GPU.
    """

    number: int = -1
    start_ns: int = 0
    partial: bool = False
    paused: bool = False
    untimed: bool = False


@dataclass
class LastStep:
    """The last step that is published. `stop_ns`: end of its last operation; 0 = not known, or it had none."""

    number: int
    start_ns: int
    end_ns: int
    stop_ns: int


@dataclass
class Replay:
    """A launch of a CUDA graph in which NCCL's calls have the numbers `first` + 1 to `last`.

    `step`: that it was launched in, -1 = none. `seen`: numbers of its operations that are published.
    """

    step: int
    host_ns: int
    first: int
    last: int
    seen: list[int]


@dataclass
class RingState:
    """State of one ring's derivation. Times are ns since the epoch.

    Attributes:
        position: records before it are published.
        clock: offset of the GPU's clock, and when it was found out (operations.clock_offset).
        ticks: of a GPU's clock that does not count ns (gpu_ticks.py).
        clock_base_ns: the host's clock less its monotonic one, when `clock` was found out; 0 = not known.
        open, last: the step in progress, and the one before.
        newest: number of the newest step that began, -1 = none.
        offset: added to the job's numbers of steps, which may start again.
        ordinals, outside: next ordinal of each communicator (text) in the open step, and outside any.
        dropped_seen, read_until: operations that the process had dropped, and the end of the ring, when last read.
        lost: operations that were dropped and are not published as lost yet.
        damaged: positions between which operations were dropped.
        period: calls of a step of a job that marks none (CallPeriod.symbols); none = not known.
        calls_since, last_communicator: calls since the last such step, and the index of the last one.
        replays: launches of CUDA graphs before `position` whose operations lie behind it.
        passed: what was called before `position` in each communicator (hash as text): number of collectives, and of
            the last one function, datatype and elements, and how many of the last ones were not measured.
        peers: likewise sends and receives, by communicator and then `peer:function`: their number, how many of the last
            ones were not measured, and the last one's function, datatype, elements and host time.
        peers_left_out: communicators of which some are not counted, as there are too many.
        thinned: some operations were not measured.
        moved_ns: host time of the last call, end or mark before `position`.
        uncounted: operations were not recorded, so `passed` and `peers` lack some.
        transfers_until: the transfers of records before it are published.
        counts: for the process's record.
    """

    position: int = 0
    clock: tuple[int, int] | None = None
    clock_base_ns: int = 0
    ticks: list[int] = field(default_factory=list)
    open: OpenStep = field(default_factory=OpenStep)
    last: LastStep | None = None
    newest: int = -1
    offset: int = 0
    steps_from: str = ""
    ordinals: dict[str, int] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)
    dropped_seen: int = 0
    read_until: int = 0
    lost: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)
    period: list[list[int]] = field(default_factory=list)
    calls_since: int = 0
    last_communicator: int = 0
    replays: list[Replay] = field(default_factory=list)
    passed: dict[str, list[int]] = field(default_factory=dict)
    peers: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    peers_left_out: list[str] = field(default_factory=list)
    thinned: bool = False
    moved_ns: int = 0
    uncounted: bool = False
    transfers_until: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            **vars(self),
            "open": vars(self.open),
            "last": self.last and vars(self.last),
            "replays": [vars(replay) for replay in self.replays],
            "counts": dict(self.counts),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RingState:
        """Return the state that `to_json` gave. Raises TypeError, ValueError, KeyError for anything else."""
        clock = value["clock"]
        return cls(
            **{
                **value,
                "clock": None if clock is None else (int(clock[0]), int(clock[1])),
                "open": OpenStep(**value["open"]),
                "last": LastStep(**value["last"]) if value["last"] else None,
                "damaged": [(int(first), int(end)) for first, end in value["damaged"]],
                "replays": [Replay(**replay) for replay in value["replays"]],
                "counts": Counter(value["counts"]),
            }
        )
