"""A job that stands still, as the explanation takes it, whatever it was read from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from drumline.producers.foreign.dumps.dumped_calls import DumpedCall
from drumline.streams.hangs.snapshot import ProcessProgress, ProgressRow


class MemberKey(NamedTuple):
    """Names a rank and a communicator of it, by the communicator's key."""

    rank: int
    communicator: str


@dataclass(slots=True)
class StandingJob:
    """Holds the processes of a job, and what a person wants to see of them.

    Attributes:
        labels: communicator -> how a person names it; `members`: its ranks.
        incomplete: communicators whose ranks the dumps do not list.
        open_calls: the collective that a rank waits in; `peer_calls`: its sends or receives, by peer and operation.
        newest: rank -> its last call in any process group.
        absent: ranks that belong to the job and have no progress, by number, with what is known of them.
        notes: sentences about ranks that no explanation holds.
    """

    processes: list[ProcessProgress] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    incomplete: set[str] = field(default_factory=set)
    open_calls: dict[MemberKey, DumpedCall] = field(default_factory=dict)
    peer_calls: dict[tuple[MemberKey, int, str], DumpedCall] = field(default_factory=dict)
    newest: dict[int, DumpedCall] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def call_in(self, rank: int, row: ProgressRow) -> DumpedCall | None:
        """Return the call that a rank waits in, of a row of it or of a collective; None where the files lack it."""
        key = MemberKey(rank, row.communicator)
        return self.open_calls.get(key) if row.peer < 0 else self.peer_calls.get((key, row.peer, row.operation))


def process(rank: int, rows: list[ProgressRow], state: str = "running", host: str = "") -> ProcessProgress:
    """Return a process that has stood still, as its newest record would show it."""
    return ProcessProgress(rank, host, "", 0, state, 0, 0, b"", tuple(rows), len(rows))


def progress_row(
    communicator: str, comm_rank: int, ranks: int, called: int, begun: int, ended: int, *,
    peer: int = -1, exact: int = 1, call: tuple[str, str, int] = ("", "", 0), last: tuple[str, str, int] = ("", "", 0),
) -> ProgressRow:  # fmt: skip
    """Return a row of progress; `call`, `last`: operation, type and number of elements."""
    return ProgressRow(
        communicator=communicator, comm_rank=comm_rank, ranks=ranks, peer=peer, called=called, begun=begun,
        ended=ended, exact=exact, closed=0, operation=call[0], datatype=call[1], elements=call[2], bytes=0,
        last_operation=last[0], last_datatype=last[1], last_elements=last[2], step=-1,
    )  # fmt: skip
