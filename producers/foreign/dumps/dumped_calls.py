"""Form of what a dump of one rank holds: the operations that it called in its process groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SEND, RECEIVE = "send", "recv"
#: Ends a group of operations that are launched together; what it has of times and states is the group's.
COALESCED = "coalesced"
GLOO = "gloo"


class StackFrame(NamedTuple):
    """Holds one frame of a stack: function, file, line."""

    function: str
    file: str
    line: int


class GroupName(NamedTuple):
    """Names a process group: PyTorch's name for it, and the program's description, "" where it has none."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class DumpedCall:
    """Holds one call of an operation.

    Attributes:
        operation: such as "all_reduce"; `peer`: of a send or receive, by its rank in the process group, else -1.
        number: of the collective, or of the send or receive, in its process group, from 1.
        record: number of the call in the process, from 0.
        is_point_to_point: numbered as sends and receives are.
        has_started, has_ended: on the GPU, as far as the dump shows.
        is_retired: PyTorch's watchdog has seen its end; one that has ended and is not retired was read by the dump.
        created_ns, timeout_ms: Unix time of the call, and after how long it fails; 0 = not known.
        sizes_in, sizes_out: shapes of its tensors; `types_in`, `types_out`: their types.
        frames: innermost first.
    """

    group: GroupName
    backend: str
    operation: str
    peer: int
    number: int
    record: int
    is_point_to_point: bool
    has_started: bool
    has_ended: bool
    is_retired: bool
    created_ns: int
    timeout_ms: int
    sizes_in: tuple[tuple[int, ...], ...]
    sizes_out: tuple[tuple[int, ...], ...]
    types_in: tuple[str, ...]
    types_out: tuple[str, ...]
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class RankDump:
    """Holds the dump of one rank.

    Attributes:
        groups: process group -> its ranks in the job, in their order; those that the dump lists.
        calls: in the order of the calls; of a buffer that was full, the newest.
        defects: what could not be used, as sentences.
    """

    path: Path
    rank: int
    version: str
    groups: dict[str, tuple[int, ...]]
    calls: tuple[DumpedCall, ...]
    defects: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether the dump holds all calls since the process began."""
        return not self.calls or self.calls[0].record == 0
