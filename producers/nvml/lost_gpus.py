"""GPUs that do not answer any more, and the jobs that were on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from drumline.producers.nvml.batches import Part

#: For so long a lost GPU's samples belong to the jobs that it took along. Then they have no job: a job with samples
#: counts as active.
WITH_JOB_NS = 60 * 1_000_000_000
#: Interval of samples of a GPU that is lost; ns.
AGAIN_NS = 10 * 1_000_000_000
#: The driver may be away for so long until its GPUs count as lost: time to load another version; ns.
DRIVER_NS = 20 * 1_000_000_000

Jobs: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass
class _Known:
    part: Part
    jobs: Jobs = field(default_factory=dict)
    lost_ns: int = 0
    sampled_ns: int = 0


class LostGpus:
    """Remembers every GPU that answered, so that one that is missing later has samples all the same.

    Used by one thread; nothing blocks. A new one knows of no GPU.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._driver_ns = 0

    def __bool__(self) -> bool:
        """Return whether any GPU is known."""
        return bool(self._known)

    def answered(self, part: Part, jobs: Jobs) -> None:
        """Note that a GPU answers, and the jobs on it."""
        self._known[part.uuid] = _Known(part, jobs)

    def silent(self, part: Part, now_ns: int) -> None:
        """Note that a GPU does not answer. One without a UUID never did."""
        known = self._known.setdefault(part.uuid or f"index {part.index}", _Known(part))
        known.lost_ns = known.lost_ns or now_ns

    def opened(self, answering: Iterable[str], silent: Iterable[int], now_ns: int) -> None:
        """Note what a new NVML lists: UUIDs of GPUs that answer, indices of those that do not.

        Those that answered before, and are not listed any more, are lost too.
        """
        self._driver_ns, uuids, silent = 0, set(answering), set(silent)
        for name, known in list(self._known.items()):
            if not known.part.uuid and known.part.index not in silent:
                del self._known[name]
            elif known.part.uuid not in uuids:
                self.silent(known.part, now_ns)
        missing = {known.part.index for known in self._known.values() if known.lost_ns}
        for index in silent - missing:
            self.silent(Part("", index), now_ns)

    def driver_away(self, now_ns: int) -> None:
        """Note that no driver answers; after a while all GPUs are lost."""
        self._driver_ns = self._driver_ns or now_ns
        if now_ns - self._driver_ns >= DRIVER_NS:
            for known in self._known.values():
                self.silent(known.part, now_ns)

    def due(self, now_ns: int) -> list[tuple[Part, Jobs]]:
        """Return the lost GPUs that a sample is due of, and the jobs that it belongs to."""
        result: list[tuple[Part, Jobs]] = []
        for known in self._known.values():
            if known.lost_ns and not 0 <= now_ns - known.sampled_ns < AGAIN_NS:
                known.sampled_ns = now_ns
                result.append((known.part, known.jobs if now_ns - known.lost_ns < WITH_JOB_NS else {}))
        return result

    def jobs(self, part: Part) -> Jobs:
        """Return the jobs that were on a GPU when it last answered."""
        return self._known[part.uuid].jobs if part.uuid in self._known else {}
