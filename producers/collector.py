"""The part of drumline that runs inside the job: CUPTI switched on and off, and asked for what is complete.

No record is looked at here. CUPTI's callbacks are C (callbacks.c): they run once a buffer, thousands of records, and
lend and take back buffers of the shared pool, which the decoder (another process) reads. One thread, which sleeps but
for a few milliseconds a second. Standard library only.

Whatever goes wrong here ends the collecting, never the job.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from drumline.producers import buffer_pool as pool_words
from drumline.producers import cupti as binding
from drumline.producers.buffer_pool import BufferPool
from drumline.producers.policy import Policy

#: CUpti_ActivityKind: CONCURRENT_KERNEL, MEMCPY, MEMSET, MARKER, MARKER_DATA. Markers last: a call that is recorded has
#: its kernel recorded; switched off in the opposite order.
KINDS = (10, 1, 2, 12, 13)
#: CUPTI_ACTIVITY_KIND_DRIVER: CUDA driver calls, recorded while the decoder asks for launches (launched.py).
DRIVER = 4
FLUSH_S = 0.25
#: How long after the end of recording what still ran then is fetched; s.
DRAIN_S = 1.0
#: While the decoder shows no sign of life for so long nobody reads the buffers: recording is off; s.
DECODER_S = 15.0
#: How often a CUPTI that another profiler holds is tried again; s.
RETRY_S = 10.0


class Collector:
    """`tell`: takes events for the decoder (JSON values), must not raise or block. `revive`: sees whether the decoder
    lives, and starts another one where it does not; True when it did. `state`: "off", "on", "window" (between windows),
    "aside" (another profiler), "waits" (the decoder does not move), "failed: why", "closed". Methods may be called from
    any thread."""

    def __init__(
        self,
        cupti: binding.Cupti,
        pool: BufferPool,
        callbacks: binding.Callbacks,
        tell: Callable[[dict[str, Any]], None],
        revive: Callable[[], bool],
    ) -> None:
        self.state = "off"
        self._cupti, self._pool, self._callbacks, self._tell = cupti, pool, callbacks, tell
        self._revive = revive
        begin = ctypes.addressof(ctypes.c_char.from_buffer(pool.memory))
        self._base = begin + pool_words.HEADER_BYTES
        callbacks.open(begin, cupti.address("cuptiActivityGetNumDroppedRecords"))
        self._lock = threading.Lock()  # around switching on and off
        self._stop = threading.Event()
        self._asides: list[str] = []
        self._recording = self._alive = self._displaced = self._launches = False
        self._met: tuple[int, ...] = KINDS  # kinds of records that there may be
        self._retry_at = self._drain_until = 0.0
        self._ticks, self._still_s = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="drumline", daemon=True)

    def start(self) -> None:
        """Begin. Raises nothing: where CUPTI refuses, `state` and an event say so, and it is tried again."""
        self._alive = True
        self._thread.start()

    def step_aside(self, who: str) -> None:
        """Another profiler is about to use CUPTI: leave it to it until `come_back`."""
        with self._lock:
            self._asides = [*(other for other in self._asides if other != who), who]
            self._displaced = True
            if self._alive:
                self._switch(False, f"{who} uses CUPTI", binding.FLUSH_FORCED)
                self.state = "aside"

    def come_back(self, who: str) -> None:
        """The other profiler has finished."""
        with self._lock:
            if who in self._asides:
                self._asides.remove(who)
            self._retry_at = 0.0

    def close(self, seconds: float = 2.0) -> None:
        """The end: a last, forced flush; then CUPTI calls nobody again. Takes at most about `seconds`."""
        if not self._alive or self.state == "closed":
            return
        self._stop.set()
        until = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            return
        try:
            last = threading.Thread(target=self._last, name="drumline-last", daemon=True)
            last.start()
            last.join(max(until - time.monotonic(), 0.1))  # a GPU that hangs must not hold up the exit
            self.state = "closed"
        finally:
            self._lock.release()

    def forget(self) -> None:
        """In the child of a fork: CUPTI is the parent's. Callbacks do nothing from here on."""
        self._alive, self.state = False, "closed"
        self._callbacks.close()

    def _last(self) -> None:
        self._switch(False, "end of the process", binding.FLUSH_FORCED)
        self._learn_sizes(last=True)
        self._callbacks.close()  # Python is about to end, CUPTI is not
        self._alive = False

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                with self._lock:
                    if self._stop.is_set():
                        return
                    wait = self._tick()
                self._pool.words[pool_words.THREAD_NS] = time.thread_time_ns()
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
                return

    def _tick(self) -> float:
        """One turn of the thread; how long to sleep until the next; s."""
        policy, now = self._policy(), time.time_ns()
        if self._revive():
            self._still_s = 0.0
            self._tell({"event": "recording", "on": self._recording, "time_ns": now, "why": str(policy)})
        stuck = self._stuck()
        wanted = policy.on_at(now) and not self._asides and not stuck
        if wanted and not self._recording and time.monotonic() >= self._retry_at:
            self._switch(True, str(policy))
        elif self._recording and not wanted:
            self._switch(False, "the decoder does not move" if stuck else str(policy))
        self._record_launches(bool(self._pool.words[pool_words.LAUNCHES]) and self._recording)
        if self._recording or (time.monotonic() < self._drain_until and not self._asides):
            self._flush(0)
        self._learn_sizes()
        if self._asides:
            self.state = "aside"
        elif stuck:
            self.state = "waits"
        elif not wanted:  # refused, it stays "aside"
            self.state = "window" if policy.changes_in(now) != float("inf") else "off"
        return min(FLUSH_S, max(policy.changes_in(time.time_ns()), 0.001))

    def _stuck(self) -> bool:
        """Whether the decoder has not moved for DECODER_S of our own turns: a job may be stopped and go on."""
        ticks = self._pool.words[pool_words.TICKS]
        self._still_s = 0.0 if ticks != self._ticks else self._still_s + FLUSH_S
        self._ticks = ticks
        return self._still_s > DECODER_S

    def _policy(self) -> Policy:
        words = self._pool.words
        mode = words[pool_words.MODE]
        return Policy(mode, max(words[pool_words.WINDOW_NS], 1), max(words[pool_words.PERIOD_NS], 1))

    def _switch(self, on: bool, why: str, flush: int = 0) -> None:
        """Recording on or off, and the decoder is told when. `self._lock` is held."""
        if on == self._recording:
            return
        problem = 0
        if on:
            if self._displaced:  # the other profiler's clock is still there, and is not ours
                problem = self._cupti.cuptiActivityRegisterTimestampCallback(self._callbacks.now)
            problem = problem or self._cupti.cuptiActivityRegisterCallbacks(
                self._callbacks.request, self._callbacks.complete
            )
            for kind in KINDS:
                problem = problem or self._cupti.cuptiActivityEnable(kind)
        if not on or problem:
            self._record_launches(False)
            for kind in reversed(KINDS):
                self._cupti.cuptiActivityDisable(kind)
            self._flush(flush)
            self._drain_until = time.monotonic() + DRAIN_S
        self._recording = on and not problem
        if problem:
            self._retry_at = time.monotonic() + RETRY_S
            why = "another profiler holds CUPTI" if problem == binding.MULTIPLE_SUBSCRIBERS else "CUPTI refused"
            why = f"{why} (CUptiResult {problem})"
            self.state = "aside"
        elif on:
            self.state = "on"
        now = time.time_ns()
        self._tell({"event": "recording", "on": self._recording, "time_ns": now, "why": why, "refused": bool(problem)})

    def _record_launches(self, on: bool) -> None:
        """Where CUPTI refuses, the decoder goes without. `self._lock` is held."""
        if on != self._launches:
            (self._cupti.cuptiActivityEnable if on else self._cupti.cuptiActivityDisable)(DRIVER)
            self._launches, self._met = on, (*KINDS, DRIVER)

    def _flush(self, flag: int) -> None:
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._cupti.cuptiActivityFlushAll(flag)
        took = time.monotonic_ns() - begin
        words = self._pool.words
        if threading.current_thread() is self._thread:
            words[pool_words.UNLOCKED_NS] += time.thread_time_ns() - cpu
        words[pool_words.FLUSH_NS] = max(words[pool_words.FLUSH_NS], took)
        self._callbacks.count_dropped()

    def _learn_sizes(self, last: bool = False) -> None:
        """How long records are, as this CUPTI steps through them: from the first buffer, when the decoder met a kind
        that was not in it, and at the end (`last`), when nobody could answer any more. A call per record, so rarely."""
        words = self._pool.words
        sizes = words[pool_words.SIZES : pool_words.SIZES + pool_words.KINDS]
        wanted = words[pool_words.WANTED_KIND]
        for number in self._pool.done():
            if any(sizes) and (not wanted or sizes[wanted]) and not (last and not all(sizes[k] for k in self._met)):
                return
            valid = words[pool_words.STATE + pool_words.PER_BUFFER * number + 1]
            found = self._cupti.record_sizes(self._base + number * self._pool.buffer_bytes, valid)
            for kind, size in found.items():
                if kind < pool_words.KINDS:
                    sizes[kind] = size

    def _fail(self, why: str) -> None:
        self.state = f"failed: {why}"
        self._tell({"event": "failed", "time_ns": time.time_ns(), "why": why})
        try:
            with self._lock:
                self._switch(False, why)
        except Exception:
            self._alive = False


def new_pool(policy: Policy = Policy()) -> BufferPool:
    """A pool with that policy and the size that the environment asks for (DRUMLINE_COLLECT__BUFFER_MB)."""
    megabytes = int(float(os.environ.get("DRUMLINE_COLLECT__BUFFER_MB") or 32))
    pool = BufferPool(buffers=16, buffer_bytes=max(megabytes, 4) << 16)
    words = pool.words
    words[pool_words.MODE] = policy.mode
    words[pool_words.WINDOW_NS], words[pool_words.PERIOD_NS] = policy.window_ns, policy.period_ns
    return pool
