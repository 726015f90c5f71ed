"""Where a stretch of a live process's activity can end (live.py): with a step all of whose collectives have run, or
where the GPU has caught up with the host. Pure; times are ns since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl.calls import NcclCalls
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: Kernels reach us this much later than they end, at most, in a process that is well.
SETTLE_NS = 1_000_000_000
#: Steps of which calls and NCCL kernels are kept: enough to find whole steps again (usual.py, resync.py) and more.
KEPT_STEPS = 8
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class End:
    """Where a stretch ends: `host_ns`; `launches` NCCL kernels belong to it; `gpu_ns`: end of the last of them.
    `kept_ns`, `kept_launches`, `kept_gpu_ns`: the same for what the next stretch need not see again. `step`: number of
    its last step, whose calls are launches `step_low` .. `launches`; -1 = it has none."""

    host_ns: int
    launches: int
    gpu_ns: int
    kept_ns: int
    kept_launches: int
    kept_gpu_ns: int
    step: int = -1
    step_low: int = 0


@dataclass(frozen=True)
class Ends:
    """What decides it. `steps`, `launches`: as the host made them; `own`: NCCL kernels in the order of their launches.
    `settled`: everything that ended before is here; `here_ns`: what the host did before is, kernels that it launched
    too. `told_ns`, `told_gpu_ns`: up to where everything was told. `begun`:
    by a stretch before. `waits`: steps will come; None = nothing will come. `late`: no step is waited for any more."""

    steps: Steps
    launches: NcclCalls
    own: Table
    settled: int
    now_ns: int
    here_ns: int
    told_ns: int
    told_gpu_ns: int
    begun: bool
    waits: bool | None
    late: bool

    def latest(self, most: int = _FAR) -> End | None:
        """The latest one; None where there is none yet. `most`: kernels that may belong to the stretch."""
        here = certain(self.own, self.settled)
        ran = np.concatenate([[0], np.maximum.accumulate(end_ns(self.own))])
        late = self.waits is None or self.late
        found = self._with_step(here, ran, late, most)
        if found is not None or (self.waits and not late) or most < _FAR:
            return found
        return self._without_step(here, ran)

    def _with_step(self, here: int, ran: Array, late: bool, most: int) -> End | None:
        """`here`: so many of `own` are certain. `ran`: when the first n of them had all ended."""
        steps = self.steps
        before, behind = (np.searchsorted(self.launches.start_ns, at) for at in (steps.start_ns, steps.end_ns))
        gpu = np.maximum(ran[np.minimum(behind, self.own.rows)], np.where(behind > before, 0, steps.end_ns))
        quiet = (gpu <= self.settled) | (self.now_ns - gpu > 2 * SETTLE_NS)
        ready = (behind <= here) & (steps.end_ns > self.told_ns) & quiet & (behind <= most)
        ready &= steps.end_ns <= self.here_ns
        if not (ready.any() and (self.begun or late or ready.sum() >= KEPT_STEPS)):
            return None
        last = int(np.flatnonzero(ready)[-1])
        first = max(last - KEPT_STEPS + 1, 0)
        kept_gpu = int(gpu[last - 1]) if last else self.told_gpu_ns
        kept = (int(steps.start_ns[first]), int(before[first]), kept_gpu)
        its = (int(steps.number[last]), int(before[last]))
        return End(int(steps.end_ns[last]), int(behind[last]), int(gpu[last]), *kept, *its)

    def _without_step(self, here: int, ran: Array) -> End | None:
        launches = self.launches
        host = self.now_ns if self.waits is None else min(self.now_ns - 2 * SETTLE_NS, self.here_ns)
        if here < len(launches.start_ns) and self.waits is not None:
            host = min(host, int(launches.start_ns[here]))
        across = launches.start_ns[(launches.start_ns < host) & (launches.end_ns > host)]
        host = min([host, *across.tolist()])  # what is open at the end is kept, so its kernel has to be
        if self.waits is not None and host - self.told_ns < SETTLE_NS:
            return None
        number = int(np.searchsorted(launches.start_ns, host))
        gpu_ns = max(int(ran[min(number, self.own.rows)]), host)
        return End(host, number, gpu_ns, host, number, gpu_ns)


def certain(own: Table, settled: int) -> int:
    """How many kernels, in launch order, are certain to have none missing among them."""
    late = np.flatnonzero(end_ns(own) > settled)
    return int(late[0]) if len(late) else own.rows
