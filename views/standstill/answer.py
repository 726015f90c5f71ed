"""Answer to the question of which rank a standing job waits for: sentence, reason, operation, stacks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.infra.guidance.entry import Entry
from drumline.infra.guidance.hangs import hang_guidance
from drumline.producers.foreign.dumps.dumped_calls import DumpedCall, StackFrame
from drumline.streams.hangs.named_ranks import NamedRank, Reason, Standstill, explain
from drumline.streams.hangs.waiting import UNNAMED, Awaited, Rendezvous, find_rendezvous
from drumline.views.standstill import sentences
from drumline.views.standstill.standing_job import StandingJob

#: Guidance where that of stored rows does not fit dumps.
_OF_DUMPS = {
    Reason.MISMATCH: Entry(
        "hung", "mismatch",
        "ranks called another operation, size or type under the same number",
        "Compare the calls and the stacks below: all ranks must call the same in one order.",
        "A fault of the program: give all ranks one order. Then end the job; it goes on from its checkpoint.",
    ),
    Reason.INSUFFICIENT: Entry(
        "hung", "insufficient_data",
        "the files do not show all ranks of the process group, or not what their GPUs began: none is named",
        "Get the dumps of all ranks, and set TORCH_NCCL_ENABLE_TIMING=1, which records what GPUs begin.",
        "Look first at ranks without a dump: a process that ended or is stopped writes none.",
    ),
    Reason.NO_OPERATION: Entry(
        "hung", "no_operation",
        "no operation is open: ranks do something else, or wait outside of their process groups",
        "Take stacks of some ranks: `py-spy dump --pid PID`.",
        "An evaluation or a checkpoint ends by itself; else fix what they wait for.",
    ),
}  # fmt: skip
#: Of ranks that wait for each other, one of them in a send or receive.
_PEERS = Entry(
    "hung", "deadlock",
    "ranks wait for each other: one in a send or receive whose other end is not called",
    "Compare the stacks below: each receive needs a send of its peer, before whatever the peer waits in.",
    "A fault of the program: add the missing send or receive, or give both ranks one order. Then end the job.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """Holds one stack that ranks share: where they called an operation; `named`: the answer names them."""

    ranks: tuple[int, ...]
    operation: str
    named: bool
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class NamedCall:
    """Holds why a rank is named, and the operation that it is about: its own, or one that waits for it."""

    rank: int
    reason: str
    operation: str
    datatype: str
    elements: int
    number: int
    process_group: str


@dataclass(frozen=True, slots=True)
class AwaitedOperation:
    """Describes the operation that is waited in. Shapes and types are those of one rank; times are Unix time.

    `ranks`: of the process group, 0 = not known.
    """

    operation: str
    number: int
    process_group: str
    ranks: int
    waiting: tuple[int, ...]
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    since_ns: int = 0
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class StandstillAnswer:
    """Answers which rank a job waits for.

    Attributes:
        sentence: the whole answer in one sentence.
        reason: as in gpu.hang.v1.
        named: ranks that are waited for, or that differ; `calls`: what each is named for.
        chain: sentences on the waits in other process groups, which follow from the first.
        absent: rank -> why nothing is known of it.
        notes: what else ranks reported.
        unreadable: files, and parts of files, that could not be used, with the reason.
    """

    sentence: str
    reason: str
    meaning: str
    check: str
    act: str
    escalate: str
    named: tuple[int, ...]
    calls: tuple[NamedCall, ...]
    operation: AwaitedOperation | None
    chain: tuple[str, ...]
    stacks: tuple[Stack, ...]
    absent: dict[int, str]
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the answer as `--json` prints it."""
        return asdict(self)


def answer(job: StandingJob, unreadable: Iterable[str] = ()) -> StandstillAnswer:
    """Return which rank a job waits for, and why."""
    standstill = explain(job.processes)
    points = [point for point in find_rendezvous(job.processes) if point.communicator != UNNAMED]
    points.sort(key=lambda point: -len(point.waiting))
    main = _main(standstill, points)
    reason = standstill.reason
    is_of_peers = reason is Reason.DEADLOCK and any(rank.row.peer >= 0 for rank in standstill.named)
    entry = _PEERS if is_of_peers else _OF_DUMPS.get(reason) or hang_guidance(reason) or _OF_DUMPS[Reason.INSUFFICIENT]
    return StandstillAnswer(
        sentence=sentences.sentence(standstill, main, points, job),
        reason=str(reason),
        meaning=entry.meaning,
        check=entry.check,
        act=entry.act,
        escalate=entry.escalate,
        named=tuple(sorted({rank.process.rank for rank in standstill.named})),
        calls=tuple(
            NamedCall(
                rank.process.rank,
                str(rank.reason),
                rank.row.operation,
                rank.row.datatype,
                rank.row.elements,
                rank.number,
                job.labels[rank.row.communicator],
            )
            for rank in standstill.named
        ),
        operation=_operation(main, job) if main is not None else None,
        chain=tuple(sentences.wait_sentence(point, job) for point in points if point is not main),
        stacks=tuple(_stacks(standstill.named, points, job)),
        absent=job.absent,
        notes=tuple(dict.fromkeys(job.notes)),
        unreadable=tuple(unreadable),
    )


def _main(standstill: Standstill, points: Sequence[Rendezvous]) -> Rendezvous | None:
    """Return the wait that the explanation is about: where no rank is named, one that does not wait for another."""
    row = standstill.row
    if not standstill.named:
        last = [point for point in points if point.awaited in (Awaited.END, Awaited.UNKNOWN)]
        return next(iter(last or points), None)
    same = [p for p in points if row is not None and (p.row is row or p.communicator == row.communicator)]
    return next((p for p in same if p.row is row), same[0] if same else None)


def _operation(point: Rendezvous, job: StandingJob) -> AwaitedOperation:
    waiting = tuple(sorted(member.process.rank for member in point.waiting))
    calls = [call for rank in waiting if (call := job.call_in(rank, point.row))]
    call = calls[0] if calls else None
    return AwaitedOperation(
        operation=call.operation if call else point.row.operation,
        number=call.number if call else point.number,
        process_group=job.labels[point.communicator],
        ranks=0 if point.communicator in job.incomplete else point.row.ranks,
        waiting=waiting,
        sizes_in=call.sizes_in if call else (),
        sizes_out=call.sizes_out if call else (),
        types=tuple(dict.fromkeys((*call.types_in, *call.types_out))) if call else (),
        since_ns=min((call.created_ns for call in calls if call.created_ns), default=0),
        timeout_ms=call.timeout_ms if call else 0,
    )


def _stacks(named: Sequence[NamedRank], points: Sequence[Rendezvous], job: StandingJob) -> Iterable[Stack]:
    """Return where named ranks called their last operation, and where the others wait, equal stacks once."""
    shared: dict[tuple[bool, str, tuple[StackFrame, ...]], list[int]] = defaultdict(list)
    awaited = {rank.process.rank: rank.row for rank in named}
    for rank, row in sorted(awaited.items(), key=lambda item: item[0]):
        call = job.call_in(rank, row) or job.newest.get(rank)
        if call is not None and call.frames:
            shared[True, _described(call, job), call.frames].append(rank)
    for point in points:
        for rank in sorted(member.process.rank for member in point.waiting):
            call = job.call_in(rank, point.row)
            if rank not in awaited and call is not None and call.frames:
                shared[False, _described(call, job), call.frames].append(rank)
    for (is_awaited, operation, frames), ranks in shared.items():
        yield Stack(tuple(dict.fromkeys(ranks)), operation, is_awaited, frames)


def _described(call: DumpedCall, job: StandingJob) -> str:
    ended = ", which has ended" if call.has_ended else ""
    description = call.group.description or f"process group {call.group.name}"
    return f"{call.operation} {call.number} of {description}{ended}"
