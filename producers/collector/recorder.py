"""CUPTI's activity recording into the pool: switched on and off, flushed, and queried for its record sizes.

No record is read here. CUPTI's callbacks are C (callbacks.c): they run once a buffer, thousands of records, and lend
and take back buffers of the shared pool.
"""

from __future__ import annotations

import ctypes
import threading
import time

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.ipc.buffer_pool import HEADER_BYTES, BufferPool, Header

#: CUpti_ActivityKind: CONCURRENT_KERNEL, MEMCPY, MEMSET, MARKER, MARKER_DATA. Markers last: a recorded call then has a
#: recorded kernel. Switched off in the opposite order.
KINDS = (10, 1, 2, 12, 13)
#: CUPTI_ACTIVITY_KIND_MEMCPY2, copies from GPU to GPU: stays on, also while the policy is off. If no GPU kind is on and
#: kernels are switched on beside a thread that launches, CUPTI may silently deliver no kernels of that context: 43 of
#: 379 processes, none with another GPU kind left on. With 13.4 and 13.5 that one must be on before the others: 25 of
#: 240 runs where it was not, 0 of 320 where it was (docs/design/cupti-issues.md, tests/gpu/missing_kernels.c).
KEPT = 22
#: CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME: a kernel has the correlation id of the call that launched
#: it; CUPTI records that of the runtime where there is one (PyTorch), else of the driver (NCCL, cuBLAS). Both have the
#: same id. CUPTI 13.0 records nothing where only
#: calls that launch are enabled (cuptiActivityEnableRuntimeApi), so all are recorded, of which few launch. They are
#: recorded where another profiler has CUPTI's callbacks, which show the same for far less (launches.c).
CALLS = (4, 5)
#: Longest time at the end of the process for the sizes of kinds that were in none of the first buffers; s.
LEARN_S = 0.3
#: Time after the end of recording in which kernels that still ran are fetched; s.
DRAIN_S = 1.0


class ActivityRecorder:
    """Controls CUPTI's recording into the buffer pool.

    Owned by Collector, which calls it under its lock, from any thread. CUPTI calls block while a GPU hangs.

    `on`: recording is on. `rests`: CUPTI has gone, or records were not needed yet; until `subscribe` nothing calls it.
    `displaced`: another profiler has used CUPTI since. `thread`: the collector's, whose CPU time in flushes is counted.
    """

    def __init__(
        self, cupti: cupti_library.Cupti, pool: BufferPool, callbacks: cupti_library.Callbacks, thread: threading.Thread
    ) -> None:
        self.on = self.displaced = self.rests = False
        self._cupti, self._pool, self._callbacks, self._thread = cupti, pool, callbacks, thread
        begin = ctypes.addressof(ctypes.c_char.from_buffer(pool.memory))
        # For ever: a thread of CUPTI may still write into it when Python has ended and would unmap it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool.memory))
        self._base = begin + HEADER_BYTES
        callbacks.open(begin, cupti.address("cuptiActivityGetNumDroppedRecords"))
        self._calls = self._subscribed = False
        self._expected_kinds: tuple[int, ...] = (*KINDS, KEPT)
        self._drain_until = 0.0

    def subscribe(self) -> None:
        """Make CUPTI create its subscriber, without recording; call it in the thread that begins to use CUDA.

        From 13.2 on the first call creates it, and sets a flag for its tables before they exist. An NVTX call of
        another thread meanwhile crashes the process, and NCCL makes one when it starts (docs/design/cupti-issues.md).
        A deep window comes later, when other threads run: Python's wait for the GIL. Done once; an error shows in
        `start`.
        """
        self.rests = False
        if not self._subscribed and not self._cupti.enable_exclusive(KINDS[-1]):
            self._cupti.cuptiActivityDisable(KINDS[-1])
            self._subscribed = True

    def keep(self) -> None:
        """Switch on the kind that stays on, where recording does not begin now."""
        if self._subscribed and not self._register_callbacks():
            self.displaced = self._cupti.cuptiActivityEnable(KEPT) == cupti_library.MULTIPLE_SUBSCRIBERS

    def release(self) -> None:
        """Switch off the kind that stays on: at the end, for another profiler, and after an error."""
        if not self.rests:
            self._cupti.cuptiActivityDisable(KEPT)

    def finalize(self) -> None:
        """Let CUPTI go, which slows every launch until then; the next `subscribe` brings it back.

        Call it when recording is off and nothing is outstanding.
        """
        self.release()
        self.flush(cupti_library.FLUSH_FORCED)
        self.rests = self._cupti.cuptiFinalize() == cupti_library.SUCCESS
        if self.rests:
            self.displaced, self._subscribed = True, False
        else:
            self.keep()

    @property
    def draining(self) -> bool:
        """True if kernels that ran when recording was switched off may still arrive.

        While the decoder is behind they have to wait, as each flush takes a buffer.
        """
        if time.monotonic() < self._drain_until:
            return True
        return self._pool.has_outstanding(time.time_ns()) and not self._pool.done()

    def start(self, calls: bool = False) -> int:
        """Switch recording on and return the CUptiResult, 0 = success. `calls`: with CUPTI's records of calls."""
        result = self._register_callbacks()
        if not result:
            self._cupti.cuptiActivityEnable(KEPT)  # an error does not matter: a CUPTI may lack this kind
            self.record_calls(calls)
        for kind in KINDS:
            result = result or self._cupti.cuptiActivityEnable(kind)
        if result:
            self.stop()
            self.release()
        self.on = not result
        self.displaced = result == cupti_library.MULTIPLE_SUBSCRIBERS or (self.displaced and not self.on)
        return result

    def _register_callbacks(self) -> int:
        """Make CUPTI call drumline for buffers and for the time. Returns the CUptiResult."""
        result = 0
        if self.displaced:  # the other profiler's clock is still registered
            result = self._cupti.cuptiActivityRegisterTimestampCallback(self._callbacks.now)
            self._pool.header[Header.REGAINED_NS] = time.time_ns()
        return result or self._cupti.cuptiActivityRegisterCallbacks(self._callbacks.request, self._callbacks.complete)

    def stop(self) -> None:
        """Switch recording off."""
        if self.rests:
            return
        for kind in reversed(KINDS):
            self._cupti.cuptiActivityDisable(kind)
        self.record_calls(False)
        self.flush()
        self._drain_until = time.monotonic() + DRAIN_S
        self.on = False

    def record_calls(self, on: bool) -> None:
        """Switch CUPTI's records of calls on or off; without them if CUPTI rejects it."""
        if on != self._calls:
            for kind in CALLS:
                (self._cupti.cuptiActivityEnable if on else self._cupti.cuptiActivityDisable)(kind)
            self._calls, self._expected_kinds = on, (*KINDS, KEPT, *CALLS)

    def flush(self, flag: int = 0) -> None:
        """Make CUPTI return completed buffers, or all of them (FLUSH_FORCED)."""
        if self.rests:
            return
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._cupti.cuptiActivityFlushAll(flag)
        self._callbacks.flush_launches()
        took = time.monotonic_ns() - begin
        header = self._pool.header
        if threading.current_thread() is self._thread:
            header[Header.UNLOCKED_NS] += time.thread_time_ns() - cpu
        header[Header.FLUSH_NS] = max(header[Header.FLUSH_NS], took)
        self._callbacks.count_dropped()

    def learn_sizes(self, last: bool = False) -> None:
        """Measure record sizes with CUPTI's own iterator and store them in the pool.

        Reads the first buffers, those with a kind that the decoder lacks, and the rest at the end (`last`), after which
        nothing can answer. It costs a call per record, so it is rare.
        """
        if self.rests:
            return
        sizes, wanted = self._pool.sizes, self._pool.header[Header.WANTED_KIND]
        until, done = time.monotonic() + LEARN_S, self._pool.done()
        for number in reversed(done) if last else done:
            if last and time.monotonic() > until:
                return
            all_known = all(sizes[kind] for kind in self._expected_kinds) if last else True
            if any(sizes) and (not wanted or sizes[wanted]) and all_known:
                return
            valid = len(self._pool.valid(number))
            measured = self._cupti.record_sizes(self._base + number * self._pool.buffer_bytes, valid)
            for kind, size in measured.items():
                if kind < len(sizes):
                    sizes[kind] = size

    def close(self) -> None:
        """Make CUPTI's callbacks do nothing from now on."""
        self._callbacks.close()

    def finish(self) -> None:
        """Do as `close`, and give the decoder what a launch wrote meanwhile; not in the child of a fork."""
        self.close()
        self._callbacks.flush_launches()
