"""PC samples of a process, as its collector passes them on, summed by kernel and by what its warps waited for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.decoder.string_cache import StringCache
from drumline.producers.ipc.pc_layout import MOST_PCS, NAME_AT, PC_BYTES, REASON_BYTES, REASONS_AT
from drumline.producers.live_matching.pending import StringTable

#: Time whose samples are one row; ns.
ROW_NS = 1_000_000_000
#: Most reasons of a place: a GPU has 40.
MOST_REASONS = 256
#: Reasons of samples that belong to no kernel of the program, and of those that the GPU had no memory for.
OUTSIDE, DROPPED = "(outside the program)", "(dropped by the GPU)"
_PREFIXES = ("smsp__pcsamp_warps_issue_stalled_", "smsp__pcsamp_")
_NOT_ISSUED = "_not_issued"


def reason(name: str) -> tuple[str, bool]:
    """Return a short name, and whether it counts only samples in which the scheduler issued no instruction."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.removesuffix(_NOT_ISSUED), name.endswith(_NOT_ISSUED)


class PcSamples:
    """Sums samples until `rows`. Owned by Session, in the decoder's only thread. Reading may block on page faults.

    `unread`: buffers that could not be read.
    """

    def __init__(self, memory: RemoteMemory) -> None:
        self.unread = 0
        self._memory, self._names = memory, StringCache(memory)
        self._reasons: list[tuple[int, str]] = []
        self._cycles = 0
        self._sums: Counter[tuple[str, str, bool]] = Counter()
        self._from_ns, self._to_ns = 0, 0

    def begin(self, event: dict[str, Any]) -> None:
        """Take the names of the reasons, and the cycles between two samples."""
        self._reasons = [(int(number), str(name)) for number, name in event["reasons"]][:MOST_REASONS]
        self._cycles = int(event["cycles"])

    def take(self, event: dict[str, Any]) -> None:
        """Read a buffer of the process, which may fill it again afterwards."""
        count, width = min(int(event["count"]), MOST_PCS), len(self._reasons)
        self._from_ns = min(self._from_ns or int(event["from_ns"]), int(event["from_ns"]))
        self._to_ns = max(self._to_ns, int(event["to_ns"]))
        for text, samples in ((OUTSIDE, int(event["outside"])), (DROPPED, int(event["dropped"]))):
            if samples:
                self._sums["", text, False] += samples
        if not count or not width:
            return
        sizes = np.array([count * PC_BYTES, count * width * REASON_BYTES])
        places = np.array([int(event["pcs"]), int(event["reasons"])], np.uint64)
        data, offsets, readable = self._memory.read(places, sizes)
        if not readable.all():
            self.unread += 1
            return
        pcs = data[: offsets[1]].view(np.uint64).reshape(count, -1)
        pairs = data[offsets[1] :].view(np.uint32).reshape(count, width, 2)
        self._names.trim()
        kernels = self._names.indices(pcs[:, NAME_AT // 8])
        is_set = np.arange(width) < pcs[:, REASONS_AT // 8, None].astype(np.int64)
        keys = (kernels[:, None].astype(np.int64) << 32 | pairs[:, :, 0])[is_set]
        weights = pairs[:, :, 1][is_set]
        distinct, inverse = np.unique(keys, return_inverse=True)
        known = dict(self._reasons)
        for key, total in zip(distinct.tolist(), np.bincount(inverse, weights).tolist(), strict=True):
            if total:
                text, is_part = reason(known.get(key & 0xFFFF_FFFF, str(key & 0xFFFF_FFFF)))
                self._sums[self._names.strings[key >> 32], text, is_part] += int(total)

    def rows(self, final: bool = False) -> Table | None:
        """Return the sums as rows of gpu.stall.v1 once they span ROW_NS, or at the end; None before."""
        if not self._sums or not (final or self._to_ns - self._from_ns >= ROW_NS):
            return None
        places = sorted({(kernel, text) for kernel, text, _ in self._sums})
        kernels, reasons, count = StringTable(), StringTable(), len(places)
        numbers = np.arange(count, dtype=np.uint32)
        columns = {
            "start_ns": np.full(count, self._from_ns, np.int64),
            "duration_ns": np.full(count, self._to_ns - self._from_ns, np.uint64),
            "name": kernels.take(numbers, [kernel for kernel, _ in places]),
            "reason": reasons.take(numbers, [text for _, text in places]),
            "samples": np.array([self._sums[*place, False] for place in places], np.uint64),
            "not_issued": np.array([self._sums[*place, True] for place in places], np.uint64),
            "cycles": np.full(count, self._cycles, np.uint32),
        }
        self._sums.clear()
        self._from_ns = self._to_ns
        return Table(columns, {"names": kernels.strings, "reasons": reasons.strings})
