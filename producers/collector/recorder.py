"""CUPTI's activity, recorded into the pool: switched on and off, flushed, and asked how long its records are.

No record is looked at here. CUPTI's callbacks are C (callbacks.c): they run once a buffer, thousands of records, and
lend and take back buffers of the shared pool. Standard library only: this runs inside the job.
"""

from __future__ import annotations

import ctypes
import threading
import time

from drumline.producers.collector import cupti as binding
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import BufferPool

#: CUpti_ActivityKind: CONCURRENT_KERNEL, MEMCPY, MEMSET, MARKER, MARKER_DATA. Markers last: a call that is recorded has
#: its kernel recorded; switched off in the opposite order.
KINDS = (10, 1, 2, 12, 13)
#: CUPTI_ACTIVITY_KIND_MEMCPY2, copies from GPU to GPU: stays on, off by policy too. Where all kinds of the GPU's are
#: off and kernels are switched on beside a thread that launches, CUPTI may have none of that context ever after, and
#: says nothing: in 43 of 379 processes, in none with another one of the GPU's left on. With 13.4 and 13.5 that one must
#: have been on before the others: 25 of 240 runs where it was not, 0 of 320 (docs/design/cupti-issues.md,
#: tests/gpu/missing_kernels.c).
KEPT = 22
#: CUPTI_ACTIVITY_KIND_DRIVER: CUDA driver calls, recorded while the decoder asks for launches (launched.py).
DRIVER = 4
#: How long the end of the process may take for the sizes of kinds that came in none of the first buffers; s.
LEARN_S = 0.3
#: How long after the end of recording what still ran then is fetched; s.
DRAIN_S = 1.0


class ActivityRecorder:
    """`on`: whether it is. `displaced`: another profiler used CUPTI since. `thread`: whose CPU time in flushes is
    counted. For one caller at a time."""

    def __init__(
        self, cupti: binding.Cupti, pool: BufferPool, callbacks: binding.Callbacks, thread: threading.Thread
    ) -> None:
        self.on = self.displaced = False
        self._cupti, self._pool, self._callbacks, self._thread = cupti, pool, callbacks, thread
        begin = ctypes.addressof(ctypes.c_char.from_buffer(pool.memory))
        # For ever: a thread of CUPTI's may still write there when Python has ended and would unmap it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool.memory))
        self._base = begin + pool_words.HEADER_BYTES
        callbacks.open(begin, cupti.address("cuptiActivityGetNumDroppedRecords"))
        self._launches = self._subscribed = False
        self._met: tuple[int, ...] = (*KINDS, KEPT)  # kinds of records that there may be
        self._drain_until = 0.0

    def subscribe(self) -> None:
        """Have CUPTI make its subscriber, with nothing recorded, in the thread that begins to use CUDA. From 13.2 on it
        is made at the first such call, and a flag says that its tables are there before they are: an NVTX call of
        another thread meanwhile ends the process, as NCCL makes one when it begins (design/cupti-issues.md). Done once;
        where CUPTI refuses, `start` says so."""
        if not self._subscribed and not self._cupti.cuptiActivityEnable(KINDS[-1]):
            self._cupti.cuptiActivityDisable(KINDS[-1])
            self._subscribed = True

    def keep(self) -> None:
        """Switch on what stays on, where recording does not begin now and CUPTI does not refuse."""
        if self._subscribed and not self._ours():
            self.displaced = self._cupti.cuptiActivityEnable(KEPT) == binding.MULTIPLE_SUBSCRIBERS

    def release(self) -> None:
        """Nothing is on any more: at the end, for another profiler, and where CUPTI refuses."""
        self._cupti.cuptiActivityDisable(KEPT)

    @property
    def draining(self) -> bool:
        """What ran when it was switched off may still come: buffers with kernels that run are not back yet. Where the
        decoder is behind they wait, as each flush takes a buffer."""
        if time.monotonic() < self._drain_until:
            return True
        return self._pool.lent(time.time_ns()) and not self._pool.done()

    def start(self) -> int:
        """Switch it on. CUptiResult: 0, or why CUPTI refuses."""
        problem = self._ours()
        if not problem:
            self._cupti.cuptiActivityEnable(KEPT)  # a CUPTI without that kind does the rest
        for kind in KINDS:
            problem = problem or self._cupti.cuptiActivityEnable(kind)
        if problem:
            self.stop()
            self.release()
        self.on = not problem
        self.displaced = problem == binding.MULTIPLE_SUBSCRIBERS or (self.displaced and not self.on)
        return problem

    def _ours(self) -> int:
        """Make CUPTI ask us for buffers, and for the time. CUptiResult."""
        problem = 0
        if self.displaced:  # the other profiler's clock is still there, and is not ours
            problem = self._cupti.cuptiActivityRegisterTimestampCallback(self._callbacks.now)
            self._pool.words[pool_words.ANEW_NS] = time.time_ns()
        return problem or self._cupti.cuptiActivityRegisterCallbacks(self._callbacks.request, self._callbacks.complete)

    def stop(self) -> None:
        """Switch it off."""
        self.record_launches(False)
        for kind in reversed(KINDS):
            self._cupti.cuptiActivityDisable(kind)
        self.flush()
        self._drain_until = time.monotonic() + DRAIN_S
        self.on = False

    def record_launches(self, on: bool) -> None:
        """Where CUPTI refuses, the decoder goes without."""
        if on != self._launches:
            (self._cupti.cuptiActivityEnable if on else self._cupti.cuptiActivityDisable)(DRIVER)
            self._launches, self._met = on, (*KINDS, KEPT, DRIVER)

    def flush(self, flag: int = 0) -> None:
        """Have CUPTI give back what is complete, or everything (FLUSH_FORCED)."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._cupti.cuptiActivityFlushAll(flag)
        took = time.monotonic_ns() - begin
        words = self._pool.words
        if threading.current_thread() is self._thread:
            words[pool_words.UNLOCKED_NS] += time.thread_time_ns() - cpu
        words[pool_words.FLUSH_NS] = max(words[pool_words.FLUSH_NS], took)
        self._callbacks.count_dropped()

    def learn_sizes(self, last: bool = False) -> None:
        """How long records are, as this CUPTI steps through them: from the first buffer, when the decoder met a kind
        that was not in it, and at the end (`last`), when nobody could answer any more. A call per record, so rarely."""
        words = self._pool.words
        sizes = words[pool_words.SIZES : pool_words.SIZES + pool_words.KINDS]
        wanted, until, done = words[pool_words.WANTED_KIND], time.monotonic() + LEARN_S, self._pool.done()
        for number in reversed(done) if last else done:
            if last and time.monotonic() > until:
                return
            if any(sizes) and (not wanted or sizes[wanted]) and not (last and not all(sizes[k] for k in self._met)):
                return
            valid = words[pool_words.STATE + pool_words.PER_BUFFER * number + 1]
            found = self._cupti.record_sizes(self._base + number * self._pool.buffer_bytes, valid)
            for kind, size in found.items():
                if kind < pool_words.KINDS:
                    sizes[kind] = size

    def close(self) -> None:
        """Callbacks do nothing from here on."""
        self._callbacks.close()
