"""Comparison of the Python stacks of a suspect rank and its peer: shares of time, and their chance. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.chance import Floats, beyond

#: Parts of a sampling; a test holds it equal to the agent's.
PARTS = 20
#: Two processes run the same program if both are in one frame of a file, as that of the training loop, for this share
#: of time. What starts a program (`<frozen runpy>`) is none.
SAME_PROGRAM = 0.9
#: Smallest share of time by which a frame may differ: what costs less makes no rank suspect.
LEAST_SHARE = 0.02
#: Of frames around each other, the innermost is shown that has this part of the largest difference.
NEARLY_ALL = 0.8


@dataclass(slots=True)
class MainThread:
    """Holds the samples of one main thread by part.

    Attributes:
        times: start of each part; ns.
        totals: samples of each part.
        counts: frame -> samples of each part whose stack has it; parts at the end may be missing.
        depths: frame -> the number of frames around it, at most.
    """

    times: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Return whether all parts are there."""
        return len(self.totals) >= PARTS

    def add(self, time_ns: int, total: int, stacks: Iterable[tuple[str, int]]) -> None:
        """Add a part that is not there yet. `stacks`: text of each, as gpu.stack.v1 has it, and its samples."""
        if time_ns in self.times or self.is_complete:
            return
        part = len(self.totals)
        self.times.append(time_ns)
        self.totals.append(total)
        for text, samples in stacks:
            frames = [_without_folder(frame) for frame in text.split(";")]
            for depth, frame in enumerate(frames):
                self.depths[frame] = max(depth, self.depths.get(frame, 0))
            for frame in set(frames):
                counts = self.counts.setdefault(frame, [])
                counts += [0] * (part + 1 - len(counts))
                counts[part] += samples

    def matrix(self, frames: Sequence[str]) -> Floats:
        """Return [frames, PARTS] samples."""
        rows = (self.counts.get(frame, []) for frame in frames)
        return np.array([row + [0] * (PARTS - len(row)) for row in rows], float).reshape(-1, PARTS)


@dataclass(frozen=True, slots=True)
class StackDifference:
    """Holds the frame that a suspect rank was in for longer than its peer.

    Attributes:
        at: the frame, `function (file:line)`; "" = there is none.
        share, peer_share: of the samples, in it.
        chance: of so large a difference in any frame without a reason.
    """

    at: str
    share: float
    peer_share: float
    chance: float


def difference(rank: MainThread, peer: MainThread) -> StackDifference | None:
    """Return where a rank was for longer than its peer; None where they cannot be compared.

    Shares of time vary from part to part, by more than samples do where a step is longer than a part: Student's t of
    what varies more. Each frame that differs from all others is one more try (Bonferroni).
    """
    if not (rank.is_complete and peer.is_complete):
        return None
    frames = sorted({*rank.counts, *peer.counts})
    samples, peer_samples = rank.matrix(frames), peer.matrix(frames)
    totals, peer_totals = np.array(rank.totals, float), np.array(peer.totals, float)
    if min(totals.sum(), peer_totals.sum()) <= 0:
        return None
    share, peer_share = samples.sum(1) / totals.sum(), peer_samples.sum(1) / peer_totals.sum()
    in_files = np.array(["(<" not in frame for frame in frames])
    if np.minimum(share, peer_share)[in_files].max(initial=0.0) < SAME_PROGRAM:
        return None
    tried = np.flatnonzero(share >= LEAST_SHARE)
    more = share - peer_share
    varies = _variance(share, peer_share, totals, peer_totals)
    varies = np.maximum(varies, _by_parts(samples, share, totals) + _by_parts(peer_samples, peer_share, peer_totals))
    times = np.where(more > 0, more / np.sqrt(np.maximum(varies, 1e-12)), 0.0)
    best = int(tried[times[tried].argmax()])
    if more[best] < LEAST_SHARE:
        return StackDifference("", 0.0, 0.0, 1.0)
    tries = len(np.unique(samples[tried], axis=0))
    inner = [
        at for at in tried.tolist() if more[at] >= NEARLY_ALL * more[best] and times[at] >= NEARLY_ALL * times[best]
    ]
    shown = max(inner, key=lambda at: (rank.depths[frames[at]], more[at]))
    chance = min(1.0, tries * beyond(float(times[best]), 2 * (PARTS - 1)))
    return StackDifference(frames[shown], float(share[shown]), float(peer_share[shown]), chance)


def _variance(share: Floats, peer_share: Floats, totals: Floats, peer_totals: Floats) -> Floats:
    """Return the variance of the difference of two shares, of samples that do not depend on each other."""
    count, peers = totals.sum(), peer_totals.sum()
    pooled = (share * count + peer_share * peers) / (count + peers)
    return np.asarray(pooled * (1.0 - pooled) * (1.0 / count + 1.0 / peers))


def _by_parts(samples: Floats, share: Floats, totals: Floats) -> Floats:
    """Return the variance of a share by what it varies from part to part."""
    distance = samples - share[:, None] * totals
    return np.asarray((distance**2).sum(1) * PARTS / (PARTS - 1) / totals.sum() ** 2)


def _without_folder(frame: str) -> str:
    """Return a frame with the last part of its file only: a program may lie elsewhere on another host."""
    function, separator, place = frame.rpartition(" (")
    return f"{function}{separator}{place.rpartition('/')[2]}"
