"""A standing job from the Flight Recorder dumps of some or all of its ranks. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from drumline.producers.foreign.dumps.dumped_calls import GLOO, RECEIVE, SEND, DumpedCall
from drumline.streams.hangs import waiting
from drumline.streams.hangs.snapshot import ProgressRow
from drumline.views.standstill.group_progress import GroupProgress, PeerProgress, RankProgress
from drumline.views.standstill.standing_job import MemberKey, StandingJob, process, progress_row

DEFAULT = "default_pg"
_FUNCTIONS = {SEND: waiting.SEND, RECEIVE: waiting.RECEIVE}
_ANSWERS = {SEND: RECEIVE, RECEIVE: SEND}
#: Operations whose ranks may give tensors of different sizes.
_UNEVEN = re.compile(r"gather|scatter|all_to_all.*|.*_v|.*barrier")


def job_of_dumps(
    dumps: Sequence[RankProgress], exited: Mapping[int, str], *, runs_in_order: bool = False
) -> StandingJob:
    """Return the job of some ranks' dumps, one a rank; `exited`: host of ranks that have ended and have no dump.

    `runs_in_order`: where a process group's dumps do not show what GPUs began, assume that each runs one collective at
    a time, in the order of the calls. Otherwise what they began is unknown.
    """
    job = StandingJob()
    by_rank = {dump.rank: dump for dump in dumps}
    world = sorted({*by_rank, *exited, *(rank for dump in dumps for ranks in dump.listed.values() for rank in ranks)})
    names = {name for dump in dumps for name in (*dump.listed, *dump.groups)}
    rows: dict[int, list[ProgressRow]] = {rank: [] for rank in (*by_rank, *exited)}
    for name in sorted(names):
        for ranks in _memberships(name, dumps, world):
            key = name if name not in job.labels else f"{name} of {ranks}"
            members = {rank: by_rank[rank] for rank in ranks if rank in by_rank}
            groups = {rank: dump.groups[name] for rank, dump in members.items() if name in dump.groups}
            job.labels[key], job.members[key] = _label(name, groups), ranks
            is_listed = ranks == tuple(world) or any(name in dump.listed for dump in members.values())
            if not is_listed:
                job.incomplete.add(key)
            for rank, its_rows in _rows(
                key, ranks, len(ranks) + (not is_listed), members, groups, exited, runs_in_order
            ).items():
                rows[rank] += its_rows
            for rank, group in groups.items():
                _keep_calls(job, MemberKey(rank, key), group)
    job.newest = {dump.rank: dump.newest for dump in dumps if dump.newest is not None}
    job.processes = [
        process(rank, its_rows, "killed" if rank in exited else "running", exited.get(rank, ""))
        for rank, its_rows in sorted(rows.items())
    ]
    if any(call.backend == GLOO for call in job.newest.values()):
        job.notes.append(
            "Gloo's dumps have no sends and receives, and no list of process groups: a named rank may wait in one."
        )
    job.absent = {rank: "it has no dump" for rank in world if rank not in rows}
    return job


def _memberships(name: str, dumps: Sequence[RankProgress], world: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the ranks of the process groups of one name: several groups may have it, of different ranks.

    Gloo's dumps list one group, without its name. Then all ranks belong to the default group, and those that called
    something to another.
    """
    if listed := {dump.listed[name] for dump in dumps if name in dump.listed}:
        return sorted(ranks for ranks in listed if name or any(name in dump.groups for dump in dumps))
    callers = [dump for dump in dumps if name in dump.groups]
    if any(dump.groups[name].description == DEFAULT for dump in callers):
        return [tuple(world)]
    return [tuple(sorted(dump.rank for dump in callers))]


def _label(name: str, groups: Mapping[int, GroupProgress]) -> str:
    description = next((group.description for group in groups.values() if group.description), "")
    return f"{description} (process group {name})" if description else f"process group {name}"


def _rows(
    key: str, ranks: tuple[int, ...], size: int, members: Mapping[int, RankProgress],
    groups: Mapping[int, GroupProgress], exited: Mapping[int, str], runs_in_order: bool,
) -> dict[int, list[ProgressRow]]:  # fmt: skip
    """Return the rows of a process group by rank: one of its collectives, and those of sends and receives by peer.

    `size`: number of its ranks; larger than `ranks` where not all of them are known.
    """
    has_starts = all(members[rank].has_starts for rank in groups)
    least = min((group.ended for group in groups.values()), default=0)
    rows: dict[int, list[ProgressRow]] = {}
    for comm_rank, rank in enumerate(ranks):
        if rank not in members and rank not in exited:
            continue
        group = groups.get(rank)
        if group is None:  # what it called before is no longer in a buffer that was full; what is open would be
            ended = 0 if rank in members and members[rank].is_whole else least
            group = GroupProgress("", ended, ended, ended)
        begun = group.begun if has_starts else -1
        if runs_in_order and not has_starts:
            is_first = rank in members and group.open_call is members[rank].first_open
            begun = group.ended + (is_first and group.open_call is not None)
        rows[rank] = [
            progress_row(
                key, comm_rank, size, group.called, begun, group.ended,
                call=_compared(group.open_call or group.last_call), last=_compared(group.last_call),
            )
        ]  # fmt: skip
    for rank, group in groups.items():
        for (peer, operation), progress in group.peers.items():
            if not 0 <= peer < len(ranks) or rank not in rows:
                continue
            other = ranks[peer]
            exact = int(members[rank].is_whole and other in members and members[other].is_whole)
            comm_rank = ranks.index(rank)
            rows[rank].append(_peer_row(key, comm_rank, size, peer, operation, progress, exact))
            answer = _ANSWERS[operation]
            if other in members and (other not in groups or (comm_rank, answer) not in groups[other].peers):
                rows[other].append(_peer_row(key, peer, size, comm_rank, answer, PeerProgress(), exact))
    return rows


def _peer_row(
    key: str, comm_rank: int, ranks: int, peer: int, operation: str, progress: PeerProgress, exact: int
) -> ProgressRow:
    """Return the row of sends or receives; of a buffer that was full those that are open alone count."""
    called, ended = (progress.called, progress.ended) if exact else (progress.called - progress.ended, 0)
    _, datatype, elements = _compared(progress.call)
    call = (_FUNCTIONS[operation], datatype, elements)
    return progress_row(key, comm_rank, ranks, called, ended, ended, peer=peer, exact=exact, call=call)


def _compared(call: DumpedCall | None) -> tuple[str, str, int]:
    """Return what all ranks have to call alike: operation, type, and number of elements, 0 where it may differ."""
    if call is None:
        return "", "", 0
    datatype = next(iter((*call.types_in, *call.types_out)), "")
    elements = 0 if _UNEVEN.fullmatch(call.operation) else sum(math.prod(shape) for shape in call.sizes_in)
    return call.operation, datatype, elements


def _keep_calls(job: StandingJob, key: MemberKey, group: GroupProgress) -> None:
    """Keep the open calls of a rank, which a person wants to see."""
    if group.open_call is not None:
        job.open_calls[key] = group.open_call
    for (peer, operation), progress in group.peers.items():
        if progress.call is not None and not progress.call.has_ended:
            job.peer_calls[key, peer, _FUNCTIONS[operation]] = progress.call
