"""The part of drumline that runs inside the job: decides when to record (cupti_recording.py) and asks for what is
complete; the decoder, another process, reads it. One thread, which sleeps but for a few milliseconds a second. Standard
library only.

Whatever goes wrong here ends the collecting, never the job.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from drumline.producers.collector import cupti as binding
from drumline.producers.collector.recorder import ActivityRecorder
from drumline.producers.collector.watchdog import MissingKernelDetector, StallDetector
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.policy import Policy

FLUSH_S = 0.25
#: While the decoder shows no sign of life for so long nobody reads the buffers: recording is off; s.
DECODER_S = 15.0
#: One that lives moves every few milliseconds. What it said before is out of date where it has not for so long; s.
HEARD_S = 1.0
#: Where CUPTI holds a buffer, and has neither asked for one nor given one back for so long, PyTorch's profiler took it,
#: if that may run on demand (dynolog): it tells Python nothing and leaves CUPTI switched off; s. As long as steps wait.
TAKEN_S = pool_words.HELD_NS / 1e9
#: How long after a profiler recording begins where PyTorch finalises CUPTI, as soon as the job calls CUDA; s.
TEARDOWN_S = 1.0
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
        self._pool, self._tell, self._revive = pool, tell, revive
        self._thread = threading.Thread(target=self._run, name="drumline", daemon=True)
        self._recording = ActivityRecorder(cupti, pool, callbacks, self._thread)
        # Around switching on and off. A signal's handler may start a profiler while its thread is in here.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._asides: list[str] = []
        self._alive = self._broken = False
        self._retry_at = 0.0
        self._decoder, self._calm, self._blind = StallDetector(FLUSH_S), StallDetector(FLUSH_S), MissingKernelDetector()
        self._on_demand = "KINETO_USE_DAEMON" in os.environ  # as PyTorch asks for it
        self._begin_at = 0.0

    def start(self) -> None:
        """Begin, in the thread that begins to use CUDA: where another one switched CUPTI on while that one made its
        context, no kernel of 7% of the processes came. Raises nothing: where CUPTI refuses, `state` and an event say
        so, and it is tried again."""
        self._alive = True
        try:
            with self._lock:
                if not self._asides:
                    self._begin()
            self._thread.start()
        except Exception as error:
            self._stop.set()
            self._fail(f"{type(error).__name__}: {error}")
            self._alive = False

    def yield_to(self, who: str) -> None:
        """Another profiler is about to use CUPTI: leave it to it until `resume_after`."""
        with self._lock:
            first = not self._asides
            self._asides = [*(other for other in self._asides if other != who), who]
            self._recording.displaced = True
            if first and self._alive and not self._broken:  # told of it again, CUPTI is the other's already
                self._let_go(f"{who} uses CUPTI")
                self.state = "aside"

    def resume_after(self, who: str) -> None:
        """The other profiler has finished, in the thread that ended it: a job's, and likely none launches meanwhile.
        Where CUPTI is still the other's, it is tried again soon. Raises nothing."""
        try:
            with self._lock:
                if who in self._asides:
                    self._asides.remove(who)
                    if os.environ.get("TEARDOWN_CUPTI") == "1":  # PyTorch finalises CUPTI once the job calls CUDA next
                        self._retry_at = self._begin_at = time.monotonic() + TEARDOWN_S
                        return
                    if self._alive and not (self._asides or self._broken):
                        self._begin()
                self._retry_at = 0.0
        except Exception as error:
            self._stop.set()
            self._fail(f"{type(error).__name__}: {error}")

    def close(self, seconds: float = 2.0) -> None:
        """The end: a last, forced flush; then CUPTI calls nobody again. Takes at most about `seconds`."""
        if not self._alive or self.state == "closed":
            return
        self._stop.set()
        self._thread.join(seconds)  # no longer: a GPU that hangs must not hold up the exit
        self.state = "closed"

    def forget(self) -> None:
        """In the child of a fork: CUPTI is the parent's. Callbacks do nothing from here on."""
        self._alive, self.state = False, "closed"
        self._recording.close()

    def _begin(self) -> None:
        """With nothing of ours on until now. `self._lock` is held."""
        policy = self._policy()
        self._recording.subscribe()
        if policy.on_at(time.time_ns()):
            self._switch(True, str(policy))
        else:
            self._recording.keep()
        if self._asides:  # a signal's handler started one meanwhile
            self._recording.displaced = True
            self._let_go(f"{self._asides[-1]} uses CUPTI")
            self.state = "aside"

    def _last(self) -> None:
        if not self._asides:
            self._let_go("end of the process")
        self._recording.learn_sizes(last=True)
        self._recording.close()  # Python is about to end, CUPTI is not
        self._alive = False

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                with self._lock:
                    wait = self._tick()
                self._pool.words[pool_words.THREAD_NS] = time.thread_time_ns()
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
                self._stop.wait()
        with self._lock:  # here, as Python 3.12.0 and 3.12.1 start no thread at the end
            self._last()

    def _tick(self) -> float:
        """One turn of the thread; how long to sleep until the next; s."""
        policy, now = self._policy(), time.time_ns()
        if self._revive():
            self._decoder = StallDetector(FLUSH_S)
            self._tell({"event": "recording", "on": self._recording.on, "time_ns": now, "why": str(policy)})
        still_s = self._decoder.turn(self._pool.words[pool_words.TICKS])
        stuck = still_s > DECODER_S
        name, why = self._astray(now, heard=still_s < HEARD_S)
        if why:  # on again below
            self._switch(False, why)
            self._tell({"event": "problem", "name": name, "why": why})
        if self._begin_at and time.monotonic() >= self._begin_at and not self._asides:
            self._begin_at = 0.0
            self._begin()
        wanted = policy.on_at(now) and not self._asides and not stuck
        if wanted and not self._recording.on and time.monotonic() >= self._retry_at:
            self._switch(True, str(policy))
        elif self._recording.on and not wanted:
            self._switch(False, "the decoder does not move" if stuck else str(policy))
        self._pool.reclaim(now)
        self._recording.record_launches(bool(self._pool.words[pool_words.LAUNCHES]) and self._recording.on)
        if self._recording.on or (self._recording.draining and not self._asides):
            self._recording.flush()
        self._recording.learn_sizes()
        if self._asides:
            self.state = "aside"
        elif stuck:
            self.state = "waits"
        elif not wanted:  # refused, it stays "aside"
            self.state = "window" if policy.changes_in(now) != float("inf") else "off"
        return min(FLUSH_S, max(policy.changes_in(time.time_ns()), 0.001))

    def _astray(self, now_ns: int, heard: bool) -> tuple[str, str]:
        """Why recording has to begin anew: a name and a sentence, or none. `heard`: the decoder moves."""
        if self._taken():
            self._recording.displaced = True
            why = f"nothing came from CUPTI for {TAKEN_S:.0f} s: begun anew, as a profiler on demand may have it"
            return "taken", why
        since = self._pool.words[pool_words.BLIND_NS]
        if heard and self._recording.on and self._blind.turn(since, now_ns):
            seconds = (now_ns - since) / 1e9
            why = f"steps had no kernel for {seconds:.0f} s: begun anew, as CUPTI may have none of this process"
            return "blind", why
        return "", ""

    def _taken(self) -> bool:
        words = self._pool.words
        calm = self._calm.turn(words[pool_words.REQUESTED] + words[pool_words.COMPLETED]) > TAKEN_S
        return calm and self._on_demand and self._recording.on and self._pool.lent(time.time_ns())

    def _policy(self) -> Policy:
        words = self._pool.words
        mode = words[pool_words.MODE]
        return Policy(mode, max(words[pool_words.WINDOW_NS], 1), max(words[pool_words.PERIOD_NS], 1))

    def _switch(self, on: bool, why: str) -> None:
        """ActivityRecorder on or off, and the decoder is told when. `self._lock` is held."""
        if on == self._recording.on:
            return
        problem = 0
        if on:
            problem = self._recording.start()
        else:
            self._recording.stop()
        if problem:
            self._retry_at = time.monotonic() + RETRY_S
            why = "another profiler holds CUPTI" if problem == binding.MULTIPLE_SUBSCRIBERS else "CUPTI refused"
            why = f"{why} (CUptiResult {problem})"
            self.state = "aside"
        elif on:
            self.state = "on"
        now = time.time_ns()
        if self._recording.on:
            self._blind.begun(now)
        said = {"on": self._recording.on, "time_ns": now, "why": why, "refused": bool(problem)}
        self._tell({"event": "recording", **said})

    def _let_go(self, why: str) -> None:
        """Nothing of ours is on any more, and all that CUPTI has is fetched. `self._lock` is held."""
        self._recording.release()
        self._switch(False, why)
        self._recording.flush(binding.FLUSH_FORCED)

    def _fail(self, why: str) -> None:
        with self._lock:
            self._broken = True
            self._tell({"event": "failed", "time_ns": time.time_ns(), "why": why})
            try:
                if not self._asides:
                    self._switch(False, why)
                    self._recording.stop()  # what began midway
                    self._recording.release()
            except Exception:
                self._alive = False
            self.state = f"failed: {why}"
