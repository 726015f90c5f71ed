"""Receives that a dump marks as completed although their sender never sent. Pure.

PyTorch asks CUDA whether the event behind an operation has passed. As long as NCCL's call has not returned, the event
is not recorded, and CUDA answers that it has: a receive that waits for its sender is written as completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drumline.producers.foreign.dumps.dumped_calls import RECEIVE, SEND
from drumline.views.standstill.group_progress import GroupProgress, PeerProgress, RankProgress

#: Note on what was assumed.
UNSENT = "A receive that its dump marks as completed counts as open: the dump of its sender has no send for it."


def with_open_receives(dumps: Sequence[RankProgress]) -> list[RankProgress]:
    """Return the dumps, one a rank, in which receives without a send are open.

    The n-th receive of a rank from another in a process group meets the n-th send of that one to it. Both dumps have to
    be whole, so that sends are counted from the begin, and the watchdog must not have seen the receive end.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    return [
        replace(dump, groups={name: _corrected(dump, name, by_rank) for name in dump.groups}) if dump.is_whole else dump
        for dump in dumps
    ]


def _corrected(dump: RankProgress, name: str, by_rank: dict[int, RankProgress]) -> GroupProgress:
    group, ranks = dump.groups[name], dump.listed.get(name, ())
    if dump.rank not in ranks:
        return group
    peers = dict(group.peers)
    for (peer, operation), progress in group.peers.items():
        sender = by_rank.get(ranks[peer]) if operation == RECEIVE and 0 <= peer < len(ranks) else None
        if sender is not None and sender.is_whole and progress.unconfirmed:
            sent = sender.groups[name].peers.get((ranks.index(dump.rank), SEND)) if name in sender.groups else None
            peers[peer, operation] = _without_ends(progress, progress.ended - (sent.called if sent else 0))
    return replace(group, peers=peers)


def _without_ends(progress: PeerProgress, unsent: int) -> PeerProgress:
    """Return the receives, of which the last `unsent` that are marked as completed are open."""
    count = min(unsent, len(progress.unconfirmed))
    if count <= 0:
        return progress
    first = replace(progress.unconfirmed[-count], has_ended=False)
    return replace(progress, ended=progress.ended - count, call=first, unconfirmed=progress.unconfirmed[:-count])
