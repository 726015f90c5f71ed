"""Counting of launches without records: CUPTI calls C at each call of CUDA's driver that launches or copies.

Nothing is counted here: see counts/*.c. The counts lie behind the activity buffers (ipc/count_layout.py), where the
decoder reads them. CUPTI gives callbacks to one subscriber of a process, so another profiler that wants some, as
PyTorch's, is rejected until `end`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.ipc.buffer_pool import BufferPool

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
#: CUPTI_CB_DOMAIN_DRIVER_API.
_DRIVER_API = 1
_MOST_CALLS = 256


class LaunchCounter:
    """Subscribes to CUPTI's callbacks of launches and copies, and lets the C code count them.

    Owned by Collector, which calls it under its lock, from any thread. CUPTI calls may block while a GPU hangs.
    `load_driver`: returns CUDA's driver, or raises OSError. `begun`: CUPTI calls back; only then anything is counted.
    """

    def __init__(self, cupti: cupti_library.Cupti, pool: BufferPool, load_driver: Callable[[], Any]) -> None:
        self.begun = False
        self._cupti, self._pool, self._load_driver = cupti, pool, load_driver
        self._callbacks: cupti_library.CountCallbacks | None = None
        self._subscriber = ctypes.c_void_p()

    def begin(self) -> int:
        """Subscribe, and return the CUptiResult, 0 = success. Raises NoCupti.

        Graphs and names that were known before are forgotten: nobody has followed them since.
        """
        callbacks = self._opened()
        callbacks.forget()
        result = self._cupti.subscribe_exclusive(ctypes.addressof(self._subscriber), callbacks.called, None)
        if result:
            return result
        for call in callbacks.calls:  # a CUPTI rejects those that it does not have
            self._cupti.cuptiEnableCallback(1, self._subscriber, _DRIVER_API, call)
        self.begun = True
        return 0

    def run(self, on: bool) -> None:
        """Count from now on, or follow graphs only, while records count."""
        if self._callbacks is not None:
            self._callbacks.run(on)

    def end(self) -> None:
        """Give the subscriber back, which another profiler may need."""
        if self.begun:
            self.run(False)
            self.begun = False
            self._cupti.cuptiUnsubscribe(self._subscriber)

    def forget(self) -> None:
        """Count nothing in the child of a fork."""
        self.begun = False
        if self._callbacks is not None:
            self._callbacks.close()

    def _opened(self) -> cupti_library.CountCallbacks:
        if self._callbacks is None:
            try:
                driver = self._load_driver()
            except OSError:  # then names and graphs are not known
                driver = None
            callbacks = cupti_library.CountCallbacks(_MOST_CALLS)
            first = ctypes.addressof(ctypes.c_char.from_buffer(self._pool.memory))
            callbacks.open(first + self._pool.counts_at, [_address(driver, names) for names in DRIVER])
            self._callbacks = callbacks
        return self._callbacks


def _address(driver: Any, names: tuple[str, ...]) -> int:
    """Return the address of the first function that the driver has, 0 without one."""
    function = next((getattr(driver, name) for name in names if hasattr(driver, name)), None)
    return (ctypes.cast(function, ctypes.c_void_p).value or 0) if function is not None else 0
