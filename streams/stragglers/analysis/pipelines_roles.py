"""Who may be compared with whom in a pipeline: ranks of one stage. Stages differ in work and in bubbles by design."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Ranks = frozenset[int]


def joined(groups: Iterable[Iterable[int]]) -> list[Ranks]:
    """Groups that share a rank become one."""
    out: list[set[int]] = []
    for group in groups:
        new = set(group)
        for other in [old for old in out if old & new]:
            new |= other
            out.remove(other)
        out.append(new)
    return [frozenset(group) for group in out]


def stage_of(pipelines: Iterable[Ranks], communicators: Mapping[str, Ranks]) -> dict[int, int] | None:
    """Rank -> its stage (the lowest rank that is known to do the same), None if there is no pipeline.

    `pipelines`: ranks of each communicator in which one rank sends what another receives. `communicators`: ranks of
    each one in which all meet. Ranks that send to each other, directly or along a chain, are of different stages. So a
    communicator with two of them spans stages; one that does not is inside a stage, and its ranks do the same.
    """
    chains = joined(pipelines)
    if not chains:
        return None
    inside = [ranks for ranks in communicators.values() if not _spans(ranks, chains, communicators)]
    return {rank: min(stage) for stage in joined(inside) for rank in stage}


def _spans(ranks: Ranks, chains: list[Ranks], communicators: Mapping[str, Ranks]) -> bool:
    """Where all ranks of the job send over one communicator, chains cannot be told apart: then communicators that
    divide it completely among them are the stages."""
    for chain in (chain for chain in chains if len(chain & ranks) > 1):
        within = [other for other in communicators.values() if other < chain]
        if not (ranks < chain and frozenset().union(*within) == chain):
            return True
    return False
