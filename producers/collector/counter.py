"""Counting and recording of launches: CUPTI calls C at each call of CUDA's driver that launches or copies.

Nothing is counted or recorded here: see counts/*.c and launches.c. The counts lie behind the activity buffers
(ipc/count_layout.py), records of launches in these, where the decoder reads them. CUPTI gives callbacks to one
subscriber of a process, so another profiler that wants some, as PyTorch's, is rejected until `end` or `lend`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.policy import Policy

#: Functions of CUDA's driver that the C code calls, the newest form first; as in counts/table.h (struct driver).
DRIVER = (
    ("cuFuncGetName",),
    ("cuKernelGetName",),
    ("cuStreamIsCapturing",),
    ("cuPointerGetAttribute",),
    ("cuGraphGetNodes",),
    ("cuGraphNodeGetType",),
    ("cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeGetParams"),
    ("cuGraphMemcpyNodeGetParams",),
    ("cuGraphMemsetNodeGetParams",),
    ("cuGraphChildGraphNodeGetGraph",),
)
#: Time between attempts to get callbacks that another profiler has; s.
RETRY_S = 10.0
#: Versions of CUPTI (cuptiGetVersion) whose one subscriber has the same handle whoever it is. PyTorch's profiler asks
#: once for callbacks, of new contexts, and keeps them when it has ended; without them it records all kernels as before
#: (docs/results/gpu-sessions.md).
RETURNED_VERSIONS = (130_001,)
#: From this version (cuptiGetVersion) on cuptiUnsubscribe ends the process's records (docs/design/cupti-issues.md).
ENDS_RECORDS = 130_400
#: CUptiResult of an attempt while the one subscriber is another.
_TAKEN = (cupti_library.MAX_LIMIT_REACHED, cupti_library.MULTIPLE_SUBSCRIBERS)
#: CUPTI_CB_DOMAIN_DRIVER_API.
_DRIVER_API = 1


class LaunchCounter:
    """Subscribes to CUPTI's callbacks of launches and copies, and lets the C code count or record them.

    Owned by Collector, which calls it under its lock, from any thread. CUPTI calls may block while a GPU hangs.
    `load_driver`: returns CUDA's driver, or raises OSError. `send_event`: takes events for the decoder.
    `begun`: launches are counted, or graphs followed while records count. `needs_mark`: CUPTI has gone until a mark of
    the job.
    """

    def __init__(
        self,
        cupti: cupti_library.Cupti,
        pool: BufferPool,
        load_driver: Callable[[], Any],
        send_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self.begun = self.needs_mark = self._subscribed = self._is_open = False
        self._records = self._wants_records = False
        self._cupti, self._pool, self._load_driver, self._send_event = cupti, pool, load_driver, send_event
        self._callbacks: cupti_library.LaunchCallbacks | None = None
        self._subscriber = ctypes.c_void_p()
        self._lent = 0  # the handle of the subscriber that a profiler took, until it has ended
        self._retry_at = 0.0

    def follow(self, policy: Policy, is_recording: bool) -> None:
        """Count while the policy wants it and records do not. Raises NoCupti.

        While records count, graphs are still followed. A rejection by CUPTI is tried again every RETRY_S.
        """
        if not policy.counts:
            self._lent = 0  # whoever has the subscriber later may use it
        if policy.counts and not (self.begun or self.needs_mark) and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_S
            result = self._begin()
            reason = f"CUPTI gives its callbacks to one profiler, and another has them (CUptiResult {result})"
            self._send_event({"event": "counting", "on": self.begun, "why": reason, "rejected": not self.begun})
        if self.begun and policy.uses_cupti and self._callbacks is not None:
            self._callbacks.count(policy.counts and not is_recording)
        elif self.begun:
            self.end(str(policy))

    def record_launches(self, on: bool) -> bool:
        """Record launches from now on, or no more; return whether they are, False if another profiler has callbacks.

        CUPTI's first use must be over. Such a profiler is met once, until `on` is False again. Raises NoCupti.
        """
        if on and not (self._wants_records or self._subscribed):
            self._subscribe(self._cupti.cuptiSubscribe)
        self._wants_records = on
        records = on and self._subscribed
        if records != self._records:
            self._records = records
            callbacks = self._loaded()
            if self._subscribed and not self.begun:
                self._enable(records, callbacks.calls(launches=True))
            callbacks.record(records)
        if not on and self._subscribed and self._cupti.version() < ENDS_RECORDS:
            self._rest()
        return records

    def rest(self) -> None:
        """Record no launches, and give the subscriber back if nothing is counted.

        Call it while records are off and CUPTI holds none: with ENDS_RECORDS and later they would be lost.
        """
        self.record_launches(False)
        self._rest()

    def end(self, reason: str) -> None:
        """Give the subscriber back, which another profiler may need. Records are off, as for `rest`."""
        self._retry_at = 0.0
        if self.begun and self._callbacks is not None:
            self._callbacks.count(0)
        was_begun, self.begun = self.begun, False
        self.rest()
        if was_begun:
            self._send_event({"event": "counting", "on": False, "why": reason, "rejected": False})

    def lend(self, profiler: str) -> None:
        """Give the subscriber to a profiler that keeps it when it has ended; the next `follow` takes it back."""
        if self._subscribed:
            self._lent = self._subscriber.value or 0
        self.end(f"{profiler} uses CUPTI")

    def forget(self) -> None:
        """Count and record nothing in the child of a fork."""
        self.begun = self._subscribed = False
        if self._callbacks is not None:
            self._callbacks.close()

    def _rest(self) -> None:
        if self._subscribed and not self.begun:
            self._subscribed = False
            self._cupti.cuptiUnsubscribe(self._subscriber)

    def _begin(self) -> int:
        """Subscribe to all calls that matter to counts. Return the CUptiResult, 0 = success. Raises NoCupti.

        Graphs and names that were known before are forgotten: nobody has followed them since.
        """
        callbacks = self._loaded()
        if not self._is_open:
            try:
                driver = self._load_driver()
            except OSError:  # then names and graphs are not known
                driver = None
            first = ctypes.addressof(ctypes.c_char.from_buffer(self._pool.memory))
            callbacks.open(first + self._pool.counts_at, [_address(driver, names) for names in DRIVER])
            self._is_open = True
        callbacks.forget()
        result = self._subscribe(self._cupti.subscribe_exclusive)
        if not result:
            self._enable(True, callbacks.calls(launches=False))
            self.begun = True
        return result

    def _subscribe(self, subscribe: Callable[..., int]) -> int:
        """Become CUPTI's subscriber; return the CUptiResult, 0 = success."""
        lent, self._lent = self._lent, 0
        if self._subscribed:
            return 0
        place, called = ctypes.addressof(self._subscriber), self._loaded().called
        result = subscribe(place, called, None)
        is_returned = result in _TAKEN and lent and self._cupti.version() in RETURNED_VERSIONS
        if is_returned and not self._cupti.cuptiUnsubscribe(lent):
            result = subscribe(place, called, None)
        self._subscribed = not result
        return result

    def _enable(self, on: bool, calls: list[int]) -> None:
        for call in calls:  # a CUPTI rejects those that it does not have
            self._cupti.cuptiEnableCallback(int(on), self._subscriber, _DRIVER_API, call)

    def _loaded(self) -> cupti_library.LaunchCallbacks:
        if self._callbacks is None:
            self._callbacks = cupti_library.LaunchCallbacks()
        return self._callbacks


def _address(driver: Any, names: tuple[str, ...]) -> int:
    """Return the address of the first function that the driver has, 0 without one."""
    function = next((getattr(driver, name) for name in names if hasattr(driver, name)), None)
    return (ctypes.cast(function, ctypes.c_void_p).value or 0) if function is not None else 0
