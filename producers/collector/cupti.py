"""Finds and binds the CUPTI library of the process, and the C callbacks that it calls.

A second copy of CUPTI in one process sees nothing or breaks the first, so a library that is already mapped is used.
Without one (PyTorch built without its profiler) it is loaded from CUDA's wheels or toolkit.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from drumline.producers.ipc.buffer_pool import LAYOUT_VERSION

_U32, _VOID = ctypes.c_uint32, ctypes.c_void_p
#: The functions that are used, with their argument types; all return CUptiResult.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuptiActivityRegisterCallbacks": (_VOID, _VOID),
    "cuptiActivityEnable": (ctypes.c_int,),
    "cuptiActivityDisable": (ctypes.c_int,),
    "cuptiActivityFlushAll": (_U32,),
    "cuptiActivityGetNextRecord": (_VOID, ctypes.c_size_t, _VOID),
    "cuptiActivityGetNumDroppedRecords": (_VOID, _U32, _VOID),
    "cuptiActivityRegisterTimestampCallback": (_VOID,),
    "cuptiSubscribe": (_VOID, _VOID, _VOID),
    "cuptiUnsubscribe": (_VOID,),
    "cuptiEnableCallback": (_U32, _VOID, ctypes.c_int, _U32),
    "cuptiGetVersion": (_VOID,),
    "cuptiFinalize": (),
}
FLUSH_FORCED = 1
#: CUptiResult values that are handled.
SUCCESS, MAX_LIMIT_REACHED, MULTIPLE_SUBSCRIBERS = 0, 12, 39
#: Versions (cuptiGetVersion) that go after a deep window. 13.0.85: 334 times, each followed by a window without a lost
#: kernel (docs/results/gpu-sessions.md); 13.5.25: 61 times, each next one with kernels. Others were not tried.
FINALIZED_VERSIONS = (130_001, 130_500)
_MOST_CALLS = 256
_NAME = re.compile(r"libcupti\.so[.0-9]*$")


class NoCupti(RuntimeError):
    """No usable CUPTI: no libcupti, one that lacks a function, or another tool's. No retry helps."""


class Cupti:
    """Binds the functions of one libcupti; each returns the CUptiResult (0 = success). Calls may block on the GPU.

    `enable_exclusive`, `subscribe_exclusive`: cuptiActivityEnable and cuptiSubscribe with the GIL held, so that no
    Python thread makes an NVTX call meanwhile.
    """

    def __init__(self, library: Any, path: str) -> None:
        self.path, self.library = path, library
        try:
            for name, arguments in FUNCTIONS.items():
                function = getattr(library, name)
                if isinstance(library, ctypes.CDLL):
                    function.argtypes, function.restype = arguments, ctypes.c_int
                setattr(self, name, function)
            self.enable_exclusive: Callable[..., int] = self.cuptiActivityEnable
            self.subscribe_exclusive: Callable[..., int] = self.cuptiSubscribe
            if isinstance(library, ctypes.CDLL):
                holding = ctypes.PyDLL(path, handle=library._handle)
                for name in ("cuptiActivityEnable", "cuptiSubscribe"):
                    function = getattr(holding, name)
                    function.argtypes, function.restype = FUNCTIONS[name], ctypes.c_int
                self.enable_exclusive, self.subscribe_exclusive = holding.cuptiActivityEnable, holding.cuptiSubscribe
        except AttributeError as error:
            raise NoCupti(f"{path}: {error}") from None

    cuptiActivityRegisterCallbacks: Callable[..., int]  # noqa: N815
    cuptiActivityEnable: Callable[..., int]  # noqa: N815
    cuptiActivityDisable: Callable[..., int]  # noqa: N815
    cuptiActivityFlushAll: Callable[..., int]  # noqa: N815
    cuptiActivityGetNextRecord: Callable[..., int]  # noqa: N815
    cuptiActivityGetNumDroppedRecords: Callable[..., int]  # noqa: N815
    cuptiActivityRegisterTimestampCallback: Callable[..., int]  # noqa: N815
    cuptiSubscribe: Callable[..., int]  # noqa: N815
    cuptiUnsubscribe: Callable[..., int]  # noqa: N815
    cuptiEnableCallback: Callable[..., int]  # noqa: N815
    cuptiGetVersion: Callable[..., int]  # noqa: N815
    cuptiFinalize: Callable[..., int]  # noqa: N815

    def address(self, name: str) -> int:
        """Return the address of a function, for C to call."""
        return ctypes.cast(getattr(self, name), ctypes.c_void_p).value or 0

    def version(self) -> int:
        """Return cuptiGetVersion's number, 0 if it fails."""
        number = ctypes.c_uint32(0)
        return number.value if self.cuptiGetVersion(ctypes.addressof(number)) == SUCCESS else 0

    def record_sizes(self, address: int, valid: int) -> dict[int, int]:
        """Return the size of each record kind in a completed buffer, from one library call per record; bytes."""
        sizes: dict[int, int] = {}
        record = ctypes.c_void_p(0)
        previous, at = 0, ctypes.addressof(record)
        while (result := self.cuptiActivityGetNextRecord(address, valid, at)) == SUCCESS and record.value:
            if previous:
                sizes[ctypes.c_uint32.from_address(previous).value] = record.value - previous
            previous = record.value
        if previous and result == MAX_LIMIT_REACHED:  # else an unfinished record follows
            sizes.setdefault(ctypes.c_uint32.from_address(previous).value, address + valid - previous)
        return sizes


class Callbacks:
    """Loads callbacks.c, built when drumline was installed. Raises NoCupti.

    `request`, `complete`, `now`: addresses of its functions, valid until the process ends.
    """

    def __init__(self) -> None:
        self._library = _built()
        self._open = self._library.drumline_open
        self._open.argtypes, self._open.restype = (_VOID, _VOID), ctypes.c_int

    def open(self, pool: int, dropped: int) -> None:
        """Let CUPTI use the pool. Raises NoCupti if the callbacks are of another layout version.

        `pool`: address of its header; `dropped`: address of cuptiActivityGetNumDroppedRecords.
        """
        if self._open(pool, dropped) != LAYOUT_VERSION:
            self._library.drumline_close()
            raise NoCupti("drumline's callbacks are of another release: pip install it again")
        self.request, self.complete, self.now = (
            ctypes.cast(getattr(self._library, f"drumline_{name}"), ctypes.c_void_p).value
            for name in ("request", "complete", "now")
        )
        self.close, self.count_dropped, self.flush_launches = (
            getattr(self._library, f"drumline_{name}") for name in ("close", "count_dropped", "launches_flush")
        )


class LaunchCallbacks:
    """Loads the C code that counts launches (counts/*.c) or records them (launches.c), built with callbacks.c.

    `called`: address of the function that CUPTI calls, valid until the process ends. `record`: begins or ends to
    record.
    After `open` only: `count` begins or ends to count, `forget` forgets graphs and names. `close`: ignores all calls.

    Raises NoCupti.
    """

    def __init__(self) -> None:
        library = self._library = _built()
        self.called = ctypes.cast(library.drumline_called, ctypes.c_void_p).value
        self.count, self.forget = library.drumline_counts_run, library.drumline_counts_forget
        self.record, self.close = library.drumline_launches_run, library.drumline_calls_close
        library.drumline_calls_open()
        self._open = library.drumline_counts_open
        self._open.argtypes = (_VOID, _VOID)

    def open(self, table: int, functions: list[int]) -> None:
        """Let it count into the table at an address. `functions`: addresses of the driver's, 0 = it has none."""
        self._open(table, (_VOID * len(functions))(*functions))

    def calls(self, launches: bool) -> list[int]:
        """Return the numbers of the calls that it looks at (CUPTI's cbids). `launches`: of those that launch alone."""
        numbers = (ctypes.c_uint32 * _MOST_CALLS)()
        return list(numbers[: self._library.drumline_counts_calls(numbers, _MOST_CALLS, launches)])


def _built() -> ctypes.CDLL:
    built = os.path.join(os.path.dirname(__file__), "_callbacks.so")
    if not os.path.exists(built):
        raise NoCupti("drumline was installed without its callbacks: pip install it again where there is a C compiler")
    return ctypes.CDLL(built)


def is_cupti(path: str) -> bool:
    """Return whether a file is a libcupti, by its name."""
    return _NAME.search(path) is not None


def mapped(maps: Iterable[str] | None = None) -> list[str]:
    """Return the libcupti files that this process has mapped; more than one is a fault of its environment."""
    if maps is None:
        with open("/proc/self/maps") as lines:
            return mapped(lines)
    paths = (line.split(None, 5)[5].rstrip("\n") for line in maps if "libcupti" in line)
    return list(dict.fromkeys(path for path in paths if is_cupti(path)))


def installed() -> list[str]:
    """Return libcupti files that could be loaded, likeliest first: CUDA's wheels, then the toolkit."""
    wheels = [
        path
        for folder in sys.path
        for pattern in ("nvidia/cu*/lib/libcupti.so.*", "nvidia/cuda_cupti/lib/libcupti.so.*")
        for path in sorted(glob.glob(os.path.join(folder, pattern)), reverse=True)
    ]
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return wheels + sorted(
        glob.glob(f"{toolkit}/extras/CUPTI/lib64/libcupti.so.*") or glob.glob(f"{toolkit}/lib64/libcupti.so*")
    )


def find() -> str:
    """Return the path of the libcupti to use. Raises NoCupti."""
    paths = mapped() or installed()
    if not paths:
        raise NoCupti("no libcupti is loaded, and none is installed: pip install nvidia-cuda-cupti")
    return paths[0]


def load(path: str) -> Cupti:
    """Load and bind a libcupti; a mapped one is not loaded again. Raises NoCupti."""
    try:
        return Cupti(ctypes.CDLL(path), path)
    except OSError as error:
        raise NoCupti(str(error)) from None
