"""Attaching to this process, and what user code may call. Standard library only: this runs inside the job.

`attach` finds CUPTI, makes the shared buffers, starts the decoder as a process of its own and then the collector. It
never raises: a job without telemetry is better than no job. What went wrong is said once on stderr and in `status()`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from drumline.producers.collector import cupti as binding
from drumline.producers.collector import decoder_process
from drumline.producers.collector.collector import Collector
from drumline.producers.collector.process_info import describe, gpus
from drumline.producers.identity import missing_run_scope
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import BufferPool, new_pool
from drumline.producers.ipc.policy import BadPolicy, Policy, parse

#: A step or scope on its way to the decoder: b"M", flags (activity.MARKER_START, MARKER_END), id, time; then its name.
MARK = struct.Struct("<cBIq")
#: Ids of such marks; CUPTI counts its own from 1.
FIRST_ID = 0x8000_0000
#: How long the end of the process may take to let the decoder read what is left; s.
DRAIN_S = 2.0
#: A decoder that was killed is replaced, but not for ever.
MOST_DECODERS = 5
#: Set by other profilers, and by ourselves for this process and those below it: to a libcupti.
_OTHERS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


class Attachment:
    """Collector, buffers and decoder of one process. `place`: asked for its `rank` and `world_size` until it knows.
    `aside`: who uses CUPTI already."""

    def __init__(self, cupti: binding.Cupti, policy: Policy | None = None, aside: str = "") -> None:
        policy = policy or Policy()
        self.pool: BufferPool = new_pool(policy)
        self.decoder, self._starts, self._cupti, self._policy = 0, 0, cupti, str(policy)
        self.place: Callable[[], dict[str, int]] = dict
        self._place: dict[str, int] = {}
        self._gpus: list[dict[str, str]] = []
        self.collector = Collector(cupti, self.pool, binding.Callbacks(), self.tell, self._revive)
        self._start()
        if aside:
            self.collector.yield_to(aside)
        self.collector.start()

    def _start(self) -> None:
        """A decoder, and the socket to it. Raises OSError."""
        self._starts += 1
        self._events, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._events.setblocking(False)
        try:
            self.decoder = decoder_process.start(self.pool.fd, theirs.fileno())
        finally:
            theirs.close()
        more = {"pid": os.getpid(), "decoders": self._starts, "policy": self._policy, **self._place}
        facts = describe(self._cupti)
        self._gpus = facts["gpus"]
        self.tell({"event": "attached", **more, **facts})

    def _revive(self) -> bool:
        """Start another decoder where the last one was killed. It counts its batches from 0: another source. Raises
        OSError, and RuntimeError where decoders keep dying."""
        self._learn()
        if decoder_process.lives(self.decoder):
            return False
        if self._starts >= MOST_DECODERS:
            why = f"{self._starts} decoders have died"
            say(f"{why}: nothing is recorded any more; the job goes on")
            raise RuntimeError(why)
        self._events.close()
        self._start()
        return True

    def _learn(self) -> None:
        """What a process knows only after it was attached: its rank, and its GPUs where CUDA was not used before."""
        later: dict[str, Any] = {}
        if not self._place:
            self._place = self.place()
            later.update(self._place)
        if not self._gpus and (found := gpus()):
            self._gpus = later["gpus"] = found
        if later:
            self.tell({"event": "place", **later})

    def tell(self, event: dict[str, Any]) -> None:
        """Hand an event to the decoder; one that cannot be handed over at once is dropped and counted."""
        self._send(b"J" + json.dumps(event).encode())

    def mark(self, flags: int, number: int, name: str) -> None:
        """A step or scope of the API begins or ends now. Whatever name the job gives is none of its problems."""
        self._send(MARK.pack(b"M", flags, number, time.time_ns()) + str(name).encode(errors="replace")[:1024])

    def close(self) -> None:
        """The end: flush, and wait until the decoder has read everything; DRAIN_S for both."""
        until = time.monotonic() + DRAIN_S
        self.collector.close(DRAIN_S)
        self.pool.words[pool_words.ENDED] = 1
        with contextlib.suppress(OSError):
            self._events.settimeout(max(until - time.monotonic(), 0.1))
            self._events.shutdown(socket.SHUT_WR)
            while self._events.recv(64):  # it answers by closing its end
                pass
        self._events.close()

    def forget(self) -> None:
        """In the child of a fork."""
        self.collector.forget()
        self._events.close()

    def _send(self, message: bytes) -> None:
        try:
            self._events.send(message)
        except OSError:
            self.pool.words[pool_words.EVENTS_LOST] += 1


_attached: Attachment | None = None
_status = "not attached"
_lock = threading.Lock()
_ids = iter(range(FIRST_ID, 1 << 32))
_step_id = 0


def attach(policy: str = "", *, cupti: binding.Cupti | None = None, aside: str = "") -> bool:
    """Start collecting in this process, once; True when it does. `policy`: policy.py, else DRUMLINE_COLLECT__POLICY.
    `aside`: a profiler that runs now and has CUPTI for itself until `collector.resume_after` says otherwise.

    Call it before the first CUDA work, or leave it to `drumline run`. Never raises.
    """
    global _attached, _status
    with _lock:
        if _attached is not None:
            return True
        try:
            chosen = parse(policy or os.environ.get("DRUMLINE_COLLECT__POLICY") or "always")
            _attached = Attachment(cupti or binding.load(prepare()), chosen, aside)
            _status = "attached"
            atexit.register(_end)
            if util := sys.modules.get("multiprocessing.util"):  # a process that it forked ends without atexit
                util.Finalize(None, _end, exitpriority=-1_000)
            os.register_at_fork(after_in_child=_forget)
            if os.environ.get("LOCAL_RANK", "0") == "0" and (who := missing_run_scope(os.environ)):
                say(f"each {who} has a run of its own, they are not compared: drumline run --run NAME, equal on all")
            return True
        except (BadPolicy, Exception) as error:
            _status = f"not attached: {error or type(error).__name__}"
            say(_status)
            return False


def prepare() -> str:
    """Find CUPTI and tell NVTX to use it; before the first NVTX call of the process. Raises NoCupti, also where these
    variables name another tool: they stay as they are."""
    for name in _OTHERS:
        if os.environ.get(name) and not binding.is_cupti(os.environ[name]):
            raise binding.NoCupti(f"{name} is set: another profiler is at work, drumline keeps away")
    path = binding.find()
    os.environ["NVTX_INJECTION64_PATH"] = path
    return path


def new_id() -> int:
    """An id for a mark."""
    return next(_ids, FIRST_ID)


def status() -> str:
    """What drumline does in this process, in words."""
    return _attached.collector.state if _attached else _status


def attached() -> Attachment | None:
    return _attached


def step(number: int) -> None:
    """Step `number` begins now, and the one before ends. Free when nothing is attached."""
    global _step_id
    one = _attached
    if one is None:
        return
    if _step_id:
        one.mark(4, _step_id, "")
    _step_id = new_id()
    one.mark(2, _step_id, f"step {number}")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """A named range around what the host does. Free when nothing is attached."""
    one = _attached
    if one is None:
        yield
        return
    number = new_id()
    one.mark(2, number, name)
    try:
        yield
    finally:
        one.mark(4, number, "")


def _end() -> None:
    if _attached is not None:
        with contextlib.suppress(Exception):
            _attached.close()


def _forget() -> None:
    global _attached, _status
    if _attached is not None:
        _attached.forget()
        _attached, _status = None, "not attached: child of a fork"


def say(text: str, environment: Mapping[str, str] = os.environ) -> None:
    """On stderr, unless nothing is to be said there; it may be gone."""
    if environment.get("DRUMLINE_QUIET") != "1" and sys.stderr:  # print would take None for stdout
        with contextlib.suppress(Exception):
            print(f"drumline: {text}", file=sys.stderr, flush=True)
