"""The CUPTI that the process already has: found, bound, and called. Standard library only: this runs inside the job.

A second copy of CUPTI in one process sees nothing or breaks the first, so the library that is mapped wins. Only where
none is (PyTorch built without its profiler) is one loaded, from where CUDA's wheels and toolkits put it.
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
#: What is used of it, and the arguments; all return CUptiResult.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuptiActivityRegisterCallbacks": (_VOID, _VOID),
    "cuptiActivityEnable": (ctypes.c_int,),
    "cuptiActivityDisable": (ctypes.c_int,),
    "cuptiActivityFlushAll": (_U32,),
    "cuptiActivityGetNextRecord": (_VOID, ctypes.c_size_t, _VOID),
    "cuptiActivityGetNumDroppedRecords": (_VOID, _U32, _VOID),
    "cuptiActivityRegisterTimestampCallback": (_VOID,),
    "cuptiGetVersion": (_VOID,),
}
FLUSH_FORCED = 1
#: CUptiResult values with a meaning of their own here.
SUCCESS, MAX_LIMIT_REACHED, MULTIPLE_SUBSCRIBERS = 0, 12, 39
_NAME = re.compile(r"libcupti\.so[.0-9]*$")


class NoCupti(RuntimeError):
    """No libcupti, or one that lacks what is needed."""


class Cupti:
    """Typed calls into one libcupti; each returns the CUptiResult (0 = success)."""

    def __init__(self, library: Any, path: str) -> None:
        self.path = path
        try:
            for name, arguments in FUNCTIONS.items():
                function = getattr(library, name)
                if isinstance(library, ctypes.CDLL):
                    function.argtypes, function.restype = arguments, ctypes.c_int
                setattr(self, name, function)
        except AttributeError as error:
            raise NoCupti(f"{path}: {error}") from None

    cuptiActivityRegisterCallbacks: Callable[..., int]  # noqa: N815
    cuptiActivityEnable: Callable[..., int]  # noqa: N815
    cuptiActivityDisable: Callable[..., int]  # noqa: N815
    cuptiActivityFlushAll: Callable[..., int]  # noqa: N815
    cuptiActivityGetNextRecord: Callable[..., int]  # noqa: N815
    cuptiActivityGetNumDroppedRecords: Callable[..., int]  # noqa: N815
    cuptiActivityRegisterTimestampCallback: Callable[..., int]  # noqa: N815
    cuptiGetVersion: Callable[..., int]  # noqa: N815

    def address(self, name: str) -> int:
        """Where a function lies, for C to call."""
        return ctypes.cast(getattr(self, name), ctypes.c_void_p).value or 0

    def version(self) -> int:
        """cuptiGetVersion; 0 = it does not say."""
        number = ctypes.c_uint32(0)
        return number.value if self.cuptiGetVersion(ctypes.addressof(number)) == SUCCESS else 0

    def record_sizes(self, address: int, valid: int) -> dict[int, int]:
        """Size of each kind of record in a completed buffer, as this library steps through it. A call per record."""
        sizes: dict[int, int] = {}
        record = ctypes.c_void_p(0)
        previous, at = 0, ctypes.addressof(record)
        while (found := self.cuptiActivityGetNextRecord(address, valid, at)) == SUCCESS and record.value:
            if previous:
                sizes[ctypes.c_uint32.from_address(previous).value] = record.value - previous
            previous = record.value
        if previous and found == MAX_LIMIT_REACHED:  # else there is one behind it that is not finished
            sizes.setdefault(ctypes.c_uint32.from_address(previous).value, address + valid - previous)
        return sizes


class Callbacks:
    """callbacks.c, built when drumline was installed. `request`, `complete`, `now`: addresses of its functions, which
    stay valid until the process ends. Raises NoCupti."""

    def __init__(self) -> None:
        found = glob.glob(os.path.join(os.path.dirname(__file__), "_callbacks*.so"))
        if not found:
            raise NoCupti(
                "drumline was installed without its callbacks: pip install it again where there is a C compiler"
            )
        library = ctypes.CDLL(found[0])
        self.request, self.complete, self.now = (
            ctypes.cast(getattr(library, f"drumline_{name}"), ctypes.c_void_p).value
            for name in ("request", "complete", "now")
        )
        self._open, self.close, self.count_dropped = (
            getattr(library, f"drumline_{name}") for name in ("open", "close", "count_dropped")
        )
        self._open.argtypes, self._open.restype = (_VOID, _VOID), ctypes.c_int

    def open(self, pool: int, dropped: int) -> None:
        """`pool`: address of its first word; `dropped`: of cuptiActivityGetNumDroppedRecords. Raises NoCupti."""
        if self._open(pool, dropped) != LAYOUT_VERSION:
            self.close()
            raise NoCupti("drumline's callbacks are of another release: pip install it again")


def is_cupti(path: str) -> bool:
    """Whether a file is a libcupti, by its name."""
    return _NAME.search(path) is not None


def mapped(maps: Iterable[str] | None = None) -> list[str]:
    """Paths of the libcupti files that this process has mapped; more than one is somebody's mistake."""
    if maps is None:
        with open("/proc/self/maps") as lines:
            return mapped(lines)
    paths = (line.split(None, 5)[5].rstrip("\n") for line in maps if "libcupti" in line)
    return list(dict.fromkeys(path for path in paths if is_cupti(path)))


def installed() -> list[str]:
    """Where a libcupti lies that could be loaded, likeliest first: CUDA's wheels, then the toolkit."""
    wheels = [
        path
        for folder in sys.path
        for pattern in ("nvidia/cu*/lib/libcupti.so.*", "nvidia/cuda_cupti/lib/libcupti.so.*")
        for path in sorted(glob.glob(os.path.join(folder, pattern)), reverse=True)
    ]
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return wheels + sorted(
        glob.glob(f"{home}/extras/CUPTI/lib64/libcupti.so.*") or glob.glob(f"{home}/lib64/libcupti.so*")
    )


def find() -> str:
    """Path of the libcupti to use. Raises NoCupti."""
    paths = mapped() or installed()
    if not paths:
        raise NoCupti("no libcupti is loaded, and none is installed: pip install nvidia-cuda-cupti")
    return paths[0]


def load(path: str) -> Cupti:
    """Bind a libcupti; one that is mapped already is not loaded again. Raises NoCupti."""
    try:
        return Cupti(ctypes.CDLL(path), path)
    except OSError as error:
        raise NoCupti(str(error)) from None
