"""The collector: a thread inside the job that switches recording on and off and fetches what CUPTI has completed.

The decoder, another process, reads it. The thread sleeps but for a few milliseconds a second. An error in here ends
the collecting, never the job.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.collector import marks
from drumline.producers.collector.counter import LaunchCounter
from drumline.producers.collector.pc_sampling import PcSampler
from drumline.producers.collector.recorder import ActivityRecorder
from drumline.producers.collector.watchdog import MissingKernelDetector, StallDetector
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.ipc.policy import Policy
from drumline.producers.ipc.timing import HELD_NS
from drumline.producers.nccl_profiler import library

FLUSH_S = 0.25
#: A decoder that does not move for so long reads no buffers: recording is switched off; s.
DECODER_S = 15.0
#: A decoder moves every few milliseconds. After so long without, its last report is out of date; s.
FRESH_S = 1.0
#: CUPTI holds a buffer but requested and returned none for so long: PyTorch's profiler on demand (dynolog) took CUPTI.
#: It does not report to Python and leaves CUPTI switched off. As long as the longest wait for a step; s.
TAKEN_S = HELD_NS / 1e9
#: Delay of recording after a profiler where PyTorch finalises CUPTI at the job's next CUDA call; s.
TEARDOWN_S = 1.0
#: Time between attempts to get a CUPTI that another profiler holds; s.
RETRY_S = 10.0
#: Sentence of a rejection of recording after PC sampling.
AFTER_SAMPLING = "PC sampling was on, after which CUPTI records no kernels until the process ends"


class Collector:
    """Switches recording by policy, yields CUPTI to other profilers, and fetches completed buffers.

    Owned by Attachment, which starts and closes it. One daemon thread ticks every FLUSH_S; the methods may be called
    from any thread. They take a lock that is also held during CUPTI calls, which a hanging GPU can block.

    `send_event`: takes events for the decoder (JSON values); must not raise or block.
    `revive_decoder`: restarts a decoder that has died, and returns whether it did.
    `sample_stacks`: begins or ends to sample the stacks of the process's threads.
    `pc_sampler`: samples the GPU while the decoder asks for it. `counter`: counts launches while the policy wants
    it, and records them while the decoder does.
    `may_finalize`: whether CUPTI may go after a deep window; `resume` brings it back.
    `state`: "off", "on", "counting", "yielded" (to another profiler), "decoder_stalled", "failed: REASON" or
    "closed".
    """

    def __init__(
        self,
        cupti: cupti_library.Cupti,
        pool: BufferPool,
        callbacks: cupti_library.Callbacks,
        send_event: Callable[[dict[str, Any]], None],
        revive_decoder: Callable[[], bool],
        may_finalize: Callable[[], bool] = lambda: False,
        sample_stacks: Callable[[bool], None] = lambda on: None,
        pc_sampler: PcSampler | None = None,
        counter: LaunchCounter | None = None,
    ) -> None:
        self.state = "off"
        self._may_finalize, self._has_begun_window = may_finalize, False
        self._sample_stacks, self._pc_sampler, self._counter = sample_stacks, pc_sampler, counter
        self._pool, self._send_event, self._revive_decoder = pool, send_event, revive_decoder
        self._thread = threading.Thread(target=self._run, name="drumline", daemon=True)
        self._recorder = ActivityRecorder(cupti, pool, callbacks, self._thread)
        # A kind of record that was on once, also one that stays on, makes launches dearer until CUPTI goes.
        self._recorder.rests = self._policy().counts
        # Around switching on and off. A signal handler may start a profiler while its thread is in here.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._active_profilers: list[str] = []
        self._alive = self._broken = False
        self._retry_at = 0.0
        self._decoder_stall, self._buffer_stall = StallDetector(FLUSH_S), StallDetector(FLUSH_S)
        self._missing_kernels = MissingKernelDetector()
        self._profiler_on_demand = "KINETO_USE_DAEMON" in os.environ  # as PyTorch reads it
        self._is_shared = self._profiler_on_demand  # another profiler has state in CUPTI, which would go too
        self._begin_at = 0.0

    def start(self) -> None:
        """Switch recording on and start the thread. Never raises; if CUPTI rejects it, `state` and an event report it.

        Call it in the thread that begins to use CUDA. Where another thread switched CUPTI on while that one created
        its context, 7% of the processes got no kernels.
        """
        self._alive = True
        try:
            with self._lock:
                if not self._active_profilers:
                    self._begin()
            self._thread.start()
        except Exception as error:
            self._stop.set()
            self._fail(f"{type(error).__name__}: {error}")
            self._alive = False

    def yield_to(self, profiler: str) -> None:
        """Stop using CUPTI, which another profiler is about to use, until `resume_after`."""
        with self._lock:
            first = not self._active_profilers
            self._active_profilers = [*(name for name in self._active_profilers if name != profiler), profiler]
            self._recorder.displaced = self._is_shared = True
            if first and self._alive and not self._broken:  # on a second call CUPTI is the other's already
                self._release(f"{profiler} uses CUPTI", "" if _torn_down() else profiler)
                self.state = "yielded"

    def resume_after(self, profiler: str) -> None:
        """Record again after another profiler has finished. Never raises; a CUPTI that is still held is tried again.

        Call it in the thread that ended the profiler: it is one of the job's, and likely none launches kernels now.
        """
        try:
            with self._lock:
                if profiler in self._active_profilers:
                    self._active_profilers.remove(profiler)
                    if _torn_down():
                        self._retry_at = self._begin_at = time.monotonic() + TEARDOWN_S
                        return
                    if self._alive and not (self._active_profilers or self._broken):
                        self._begin()
                self._retry_at = 0.0
        except Exception as error:
            self._stop.set()
            self._fail(f"{type(error).__name__}: {error}")

    def resume(self) -> None:
        """Begin to record with a CUPTI that rests, and to count with one that has gone, if the policy wants it now.

        Never raises. Call it in a thread of the job that is in no NVTX call and launches nothing meanwhile. It waits
        for the lock only while records rest: then nobody is in a call that a hanging GPU blocks.
        """
        needs_mark = self._counter is not None and self._counter.needs_mark
        if not self._recorder.rests or not (needs_mark or self._policy().records):
            return
        try:
            with self._lock:
                if self._alive and not (self._active_profilers or self._broken or self._begin_at):
                    self._begin()
        except Exception as error:
            self._stop.set()
            self._fail(f"{type(error).__name__}: {error}")

    def wait_for_finalize(self) -> None:
        """Wait until CUPTI has gone, if it is about to: a CUDA graph that is captured meanwhile would break."""
        with self._lock:
            pass

    def close(self, seconds: float = 2.0) -> None:
        """Flush everything and detach from CUPTI; takes at most about `seconds`."""
        if not self._alive or self.state == "closed":
            return
        self._stop.set()
        self._thread.join(seconds)  # with a limit: a GPU that hangs must not hold up the exit
        self.state = "closed"

    def forget(self) -> None:
        """Detach in the child of a fork: CUPTI is the parent's. Its callbacks do nothing from now on."""
        self._alive, self.state = False, "closed"
        self._recorder.close()
        if self._counter:
            self._counter.forget()

    def _begin(self) -> None:
        """Subscribe and switch on what the policy wants, from nothing. `self._lock` is held."""
        policy = self._policy()
        if self._counter:
            self._counter.needs_mark = False
        self._count(policy)  # before CUPTI makes a subscriber of its own
        if self._recorder.rests:
            if not policy.records:
                return
            self._has_begun_window = True
        self._recorder.subscribe()
        if policy.records:
            self._switch(True, str(policy))
        else:
            self._recorder.keep()
        if self._active_profilers:  # a signal handler started one meanwhile
            self._recorder.displaced = True
            self._release(f"{self._active_profilers[-1]} uses CUPTI")
            self.state = "yielded"

    def _finish(self) -> None:
        self._sample_stacks(False)
        if not self._active_profilers:
            self._release("end of the process")
        self._recorder.learn_sizes(last=True)
        self._recorder.finish()  # Python is about to end, CUPTI is not
        self._alive = False

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                with self._lock:
                    self._tick()
                wait = FLUSH_S
                self._pool.header[Header.THREAD_NS] = time.thread_time_ns()
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
                self._stop.wait()
        with self._lock:  # in this thread, as Python 3.12.0 and 3.12.1 start no thread at the end
            self._finish()

    def _tick(self) -> None:
        """Do what is due, once every FLUSH_S."""
        policy, now = self._policy(), time.time_ns()
        if self._revive_decoder():
            self._decoder_stall = StallDetector(FLUSH_S)
            if self._pc_sampler:
                self._pc_sampler.forget()
            self._send_event({"event": "recording", "on": self._recorder.on, "time_ns": now, "why": str(policy)})
        stalled_s = self._decoder_stall.tick(self._pool.header[Header.TICKS])
        # After PC sampling, kernels that are switched off do not come back: nothing but the policy does so.
        sampled = self._pc_sampler is not None and self._pc_sampler.is_enabled
        stalled = stalled_s > DECODER_S and not sampled
        problem, reason = self._restart_reason(now, decoder_is_fresh=stalled_s < FRESH_S)
        if reason and not sampled:  # on again below
            self._switch(False, reason)
            self._send_event({"event": "problem", "name": problem, "why": reason})
        if self._begin_at and time.monotonic() >= self._begin_at and not self._active_profilers:
            self._begin_at = 0.0
            self._begin()
        wanted = policy.records and not (self._active_profilers or stalled or self._recorder.rests)
        if wanted and not self._recorder.on and time.monotonic() >= self._retry_at:
            self._switch(True, str(policy))
        elif self._recorder.on and not wanted:
            self._switch(False, "the decoder does not move" if stalled else str(policy))
        self._count(policy)
        self._pool.reclaim(now)
        self._recorder.record_calls(self._recorder.on and self._lacks_launches())
        self._sample_stacks(bool(self._pool.header[Header.STACKS]) and self._recorder.on)
        if self._pc_sampler and self._recorder.on:
            self._pc_sampler.switch(int(self._pool.header[Header.PC]) - 1)
            self._pc_sampler.take()
        if self._recorder.on or (self._recorder.draining and not self._active_profilers):
            self._recorder.flush()
        elif self._counter and not self._recorder.rests:
            self._counter.rest()
        self._recorder.learn_sizes()
        is_over = not (policy.records or self._recorder.on or self._active_profilers)
        if is_over and self._has_begun_window and not (self._recorder.draining or self._pool.done()):
            self._end_window(self._may_finalize() and not (self._is_shared or sampled))
        if self._active_profilers:
            self.state = "yielded"
        elif stalled:
            self.state = "decoder_stalled"
        elif not wanted:  # if CUPTI rejects it, "yielded" stays
            self.state = "counting" if self._counter is not None and self._counter.begun else "off"

    def _restart_reason(self, now_ns: int, decoder_is_fresh: bool) -> tuple[str, str]:
        """Return (problem, sentence) if recording must restart, else two empty strings."""
        if self._is_taken():
            self._recorder.displaced = True
            reason = f"nothing from CUPTI for {TAKEN_S:.0f} s: recording restarts, a profiler on demand may have it"
            return "taken", reason
        since_ns = self._pool.header[Header.NO_KERNELS_SINCE_NS]
        if decoder_is_fresh and self._recorder.on and self._missing_kernels.tick(since_ns, now_ns):
            seconds = (now_ns - since_ns) / 1e9
            reason = f"steps had no kernels for {seconds:.0f} s: recording restarts, CUPTI may have lost them"
            return "no_kernels", reason
        return "", ""

    def _is_taken(self) -> bool:
        header = self._pool.header
        idle = self._buffer_stall.tick(header[Header.REQUESTED] + header[Header.COMPLETED]) > TAKEN_S
        return idle and self._profiler_on_demand and self._recorder.on and self._pool.has_outstanding(time.time_ns())

    def _policy(self) -> Policy:
        return Policy(self._pool.header[Header.MODE])

    def _switch(self, on: bool, reason: str) -> None:
        """Switch recording on or off and send the decoder the time. `self._lock` is held."""
        if on == self._recorder.on:
            return
        result = 0
        if on:
            result = self._recorder.start(self._lacks_launches())
        else:
            if self._pc_sampler:
                self._pc_sampler.switch(-1)
            self._recorder.stop()
            if self._counter:
                self._counter.record_launches(False)
        if result:
            self._retry_at = time.monotonic() + RETRY_S
            held = result == cupti_library.MULTIPLE_SUBSCRIBERS
            reason = "another profiler holds CUPTI" if held else "CUPTI rejected recording"
            reason = f"{reason} (CUptiResult {result})"
            if self._pc_sampler and self._pc_sampler.is_enabled:
                reason = AFTER_SAMPLING
                self._send_event({"event": "pc_rejected", "why": reason})  # a window that asks is answered
            self.state = "yielded"
        elif on:
            self.state = "on"
        now = time.time_ns()
        if self._recorder.on:
            self._has_begun_window = True
            self._missing_kernels.recording_started(now)
        library.time_all(self._recorder.on or marks.graph_was_captured)  # in a deep window each step counts
        outcome = {"on": self._recorder.on, "time_ns": now, "why": reason, "rejected": bool(result)}
        self._send_event({"event": "recording", **outcome})

    def _count(self, policy: Policy) -> None:
        """Count launches where the policy wants it and no record does. `self._lock` is held."""
        if self._counter and not self._active_profilers:
            self._counter.follow(policy, self._recorder.on)

    def _lacks_launches(self) -> bool:
        """Record launches if the decoder wants them; return whether only CUPTI's records of calls can show them.

        The decoder wants them in deep windows that ask for them, and after a loss (derive/nccl/launch_records.py).
        """
        wanted = bool(self._pool.header[Header.LAUNCHES])
        # A profiler on demand takes CUPTI without a notice, and then the subscriber, which nobody lends it.
        counter = None if self._profiler_on_demand else self._counter
        return not (counter and counter.record_launches(wanted)) and wanted

    def _end_window(self, may_finalize: bool) -> None:
        """Let CUPTI go where it may, and with it the callbacks until the job's next mark. `self._lock` is held."""
        if may_finalize and self._counter and self._counter.begun:
            self._counter.end("CUPTI goes after a window, and comes back at the next step")
            self._counter.needs_mark = True
            return  # a launch may be in its callback: CUPTI goes with the next tick
        if may_finalize:
            self._recorder.finalize()
        if self._counter:
            self._counter.needs_mark = self._recorder.rests
        self._has_begun_window = False

    def _release(self, reason: str, borrower: str = "") -> None:
        """Switch everything off and fetch all that CUPTI has. `self._lock` is held.

        `borrower`: a profiler that gets CUPTI's subscriber until it has ended.
        """
        self._recorder.release()
        self._switch(False, reason)
        self._recorder.flush(cupti_library.FLUSH_FORCED)
        if self._counter and borrower:
            self._counter.lend(borrower)
        elif self._counter:
            self._counter.end(reason)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._broken = True
            self._send_event({"event": "failed", "time_ns": time.time_ns(), "why": reason})
            try:
                if not self._active_profilers:
                    self._switch(False, reason)
                    self._recorder.stop()  # what was switched on before the error
                    self._recorder.release()
                    if self._counter:
                        self._counter.end(reason)
            except Exception:
                self._alive = False
            self.state = f"failed: {reason}"


def _torn_down() -> bool:
    """Return whether PyTorch's profiler finalises CUPTI at the job's next CUDA call, by a callback that it needs."""
    return os.environ.get("TEARDOWN_CUPTI") == "1"
