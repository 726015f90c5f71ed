"""Attaches drumline to this process, and implements the calls that user code may make.

`attach` finds CUPTI, creates the shared buffers, starts the decoder process and then the collector. It never raises: a
job without telemetry is better than no job. An error is written once to stderr, and is in `status()`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.collector import decoder_process
from drumline.producers.collector.collector import Collector
from drumline.producers.collector.event_socket import event_sockets
from drumline.producers.collector.process_info import describe, gpus
from drumline.producers.identity import missing_run_scope
from drumline.producers.ipc.buffer_pool import BufferPool, Header, new_pool
from drumline.producers.ipc.events import FIRST_MARK_ID, MARK, MARK_BEGIN, MARK_END, warn
from drumline.producers.ipc.policy import BadPolicy, Policy, parse

#: Time at the end of the process in which the decoder may read what is left; s.
DRAIN_S = 2.0
#: Most decoders of a process: one that was killed is replaced, but not for ever.
MAX_DECODERS = 5
#: Variables that name a libcupti. Other profilers set them, and so does `prepare`, for this process and its children.
_INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


class Attachment:
    """Holds the collector, the buffers and the decoder of this process.

    Created by `attach`, closed at the end of the process. `send_event` and `mark` may be called from any thread and
    never block; what cannot be sent at once is dropped and counted. `close` takes up to DRAIN_S.

    `pool`: the shared buffers. `decoder`: pid of the decoder. `collector`: records into the pool.
    `place`: called for `rank` and `world_size` until it returns them.
    """

    def __init__(self, cupti: cupti_library.Cupti, policy: Policy | None = None, active_profiler: str = "") -> None:
        policy = policy or Policy()
        self.pool: BufferPool = new_pool(policy)
        self.decoder, self._decoders_started, self._cupti, self._policy = 0, 0, cupti, str(policy)
        self.place: Callable[[], dict[str, int]] = dict
        self._place: dict[str, int] = {}
        self._gpus: list[dict[str, str]] = []
        callbacks = cupti_library.Callbacks()
        self.collector = Collector(cupti, self.pool, callbacks, self.send_event, self._revive_decoder)
        self._start_decoder()
        if active_profiler:
            self.collector.yield_to(active_profiler)
        self.collector.start()

    def _start_decoder(self) -> None:
        """Start a decoder with a socket to it. Raises OSError."""
        self._decoders_started += 1
        self._events, decoder_end = event_sockets()
        try:
            self.decoder = decoder_process.start(self.pool.fd, decoder_end.fileno())
        finally:
            decoder_end.close()
        more = {"pid": os.getpid(), "decoders": self._decoders_started, "policy": self._policy, **self._place}
        facts = describe(self._cupti)
        self._gpus = facts["gpus"]
        self.send_event({"event": "attached", **more, **facts})

    def _revive_decoder(self) -> bool:
        """Start another decoder if the last one was killed, and return whether it was.

        It counts its batches from 0: it is another source. Raises OSError, and RuntimeError after MAX_DECODERS or
        where the job has closed the descriptor of the buffers.
        """
        self._send_late_facts()
        if decoder_process.is_alive(self.decoder):
            return False
        closed = not self.pool.has_descriptor
        if closed or self._decoders_started >= MAX_DECODERS:
            reason = f"{self._decoders_started} decoders have died"
            reason = "the job has closed descriptors of drumline" if closed else reason
            warn(f"{reason}: nothing is recorded any more; the job goes on")
            raise RuntimeError(reason)
        self._events.close()
        self._start_decoder()
        return True

    def _send_late_facts(self) -> None:
        """Send what a process may know only after it was attached: its rank, and its GPUs."""
        facts: dict[str, Any] = {}
        if not self._place:
            self._place = self.place()
            facts.update(self._place)
        if not self._gpus and (visible := gpus()):
            self._gpus = facts["gpus"] = visible
        if facts:
            self.send_event({"event": "place", **facts})

    def send_event(self, event: dict[str, Any]) -> None:
        """Send an event (JSON values) to the decoder, or drop and count it."""
        self._send(b"J" + json.dumps(event).encode())

    def mark(self, flags: int, number: int, name: str) -> None:
        """Send that a step or scope of the API begins or ends now. Any name is accepted; it is cut at 1,024 bytes."""
        self._send(MARK.pack(b"M", flags, number, time.time_ns()) + str(name).encode(errors="replace")[:1024])

    def close(self) -> None:
        """Stop recording and wait until the decoder has read everything; up to DRAIN_S for both."""
        until = time.monotonic() + DRAIN_S
        self.collector.close(DRAIN_S)
        self.pool.header[Header.ENDED] = 1
        self._events.drain(until)
        self._events.close()

    def forget(self) -> None:
        """Detach in the child of a fork; CUPTI and the decoder belong to the parent."""
        self.collector.forget()
        self._events.close()

    def _send(self, message: bytes) -> None:
        try:
            self._events.send(message)
        except OSError:
            self.pool.header[Header.EVENTS_LOST] += 1


_attached: Attachment | None = None
_status = "not attached"
_lock = threading.Lock()
_ids = iter(range(FIRST_MARK_ID, 1 << 32))
_step_id = 0


def attach(policy: str = "", *, cupti: cupti_library.Cupti | None = None, active_profiler: str = "") -> bool:
    """Start collecting in this process, once, and return whether it is attached. Never raises.

    Call it before the first CUDA work, or leave it to `drumline run`. `policy`: as in policy.py, else
    DRUMLINE_COLLECT__POLICY. `active_profiler`: another profiler that has CUPTI until `collector.resume_after`.
    """
    global _attached, _status
    with _lock:
        if _attached is not None:
            return True
        try:
            chosen = parse(policy or os.environ.get("DRUMLINE_COLLECT__POLICY") or "always")
            _attached = Attachment(cupti or cupti_library.load(prepare()), chosen, active_profiler)
            _status = "attached"
            atexit.register(_end)
            if util := sys.modules.get("multiprocessing.util"):  # a process that it forked ends without atexit
                util.Finalize(None, _end, exitpriority=-1_000)
            os.register_at_fork(after_in_child=_forget)
            if os.environ.get("LOCAL_RANK", "0") == "0" and (scope := missing_run_scope(os.environ)):
                warn(f"each {scope} has its own run id, they are not compared: drumline run --run NAME, equal on all")
            return True
        except (BadPolicy, Exception) as error:
            _status = f"not attached: {error or type(error).__name__}"
            warn(_status)
            return False


def prepare() -> str:
    """Find CUPTI, make NVTX use it, and return its path; call it before the first NVTX call of the process.

    Raises NoCupti, also where an injection variable names another tool: it stays as it is.
    """
    for name in _INJECTION_VARIABLES:
        if os.environ.get(name) and not cupti_library.is_cupti(os.environ[name]):
            raise cupti_library.NoCupti(f"{name} is set: another profiler is active, drumline does not record")
    path = cupti_library.find()
    os.environ["NVTX_INJECTION64_PATH"] = path
    return path


def new_id() -> int:
    """Return an unused id for a mark."""
    return next(_ids, FIRST_MARK_ID)


def status() -> str:
    """Return the state of collecting in this process, as text."""
    return _attached.collector.state if _attached else _status


def attached() -> Attachment | None:
    """Return the attachment of this process, or None."""
    return _attached


def step(number: int) -> None:
    """Begin step `number` and end the one before. Does nothing while nothing is attached."""
    global _step_id
    attachment = _attached
    if attachment is None:
        return
    if _step_id:
        attachment.mark(MARK_END, _step_id, "")
    _step_id = new_id()
    attachment.mark(MARK_BEGIN, _step_id, f"step {number}")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Mark a named range of host time. Does nothing while nothing is attached."""
    attachment = _attached
    if attachment is None:
        yield
        return
    number = new_id()
    attachment.mark(MARK_BEGIN, number, name)
    try:
        yield
    finally:
        attachment.mark(MARK_END, number, "")


def _end() -> None:
    if _attached is not None:
        with contextlib.suppress(Exception):
            _attached.close()


def _forget() -> None:
    global _attached, _status
    if _attached is not None:
        _attached.forget()
        _attached, _status = None, "not attached: child of a fork"
