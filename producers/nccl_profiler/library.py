"""Path of NCCL's profiler plugin, the job's marks in its file (steps, ranges, replays of graphs), and its switch.

It is imported inside the job: standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping

#: File and SONAME: glibc gives NCCL, which opens the plain name, the library that is loaded already.
LIBRARY = "libnccl-profiler-drumline.so"
#: Kinds of marks (ring.h).
STEP_MARK, RANGE_BEGIN, RANGE_END, GRAPH_REPLAY, RECORD = 2, 3, 4, 5, 6
#: Most bytes of a name that a mark holds (ring.h).
NAME_BYTES = 32
#: Folder of all rings of the host; a process without it writes none.
FOLDER_VARIABLE = "DRUMLINE_RINGS__FOLDER"
#: First version of NCCL's profiler interface that states when the GPU worked.
TIMED_INTERFACE = 4
#: 0 = operations that are captured into CUDA graphs run as without drumline, and are not recorded.
GRAPHS_VARIABLE = "DRUMLINE_RINGS__GRAPHS"


def path() -> str | None:
    """Return the plugin's path; None if drumline was installed without a C compiler."""
    built = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)
    return built if os.path.exists(built) else None


@functools.cache
def load() -> ctypes.PyDLL | None:
    """Load the plugin, once; None where this process has no ring.

    NCCL uses the same library afterwards: it is the same file. The file of the ring is created at the first mark or
    communicator. Calls keep the GIL: they take less time than to give it away.
    """
    library = path()
    if not os.environ.get(FOLDER_VARIABLE) or library is None:
        return None
    try:
        plugin = ctypes.PyDLL(library)
        plugin.drumline_mark.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_uint64)
        plugin.drumline_captured.restype = ctypes.c_uint64
    except (OSError, AttributeError):  # of another machine or release
        return None
    return plugin


def captured() -> int:
    """Return how many calls of NCCL's API were captured into CUDA graphs so far; 0 if there is no ring."""
    plugin = load()
    return 0 if plugin is None else int(plugin.drumline_captured())


def record(on: bool) -> bool:
    """Switch the recording of this process's operations off or on; return False if it stays as it was.

    Steps in which it was off are not compared. While it is off NCCL works as without the plugin.
    """
    plugin = load()
    return plugin is not None and plugin.drumline_record(ctypes.c_int(on)) == 0


def time_all(on: bool) -> None:
    """Let NCCL measure all operations from now on, or from the next step as many as the job's pace allows."""
    plugin = load()
    if plugin is not None:
        plugin.drumline_time_all(ctypes.c_int(on))


def record_transfers(on: bool) -> bool:
    """Switch the recording of transfers off or on again; return False if there is no ring.

    It serves to measure what they cost.
    """
    plugin = load()
    if plugin is None:
        return False
    plugin.drumline_record_transfers(ctypes.c_int(on))
    return True


def records_graphs(environment: Mapping[str, str]) -> bool:
    """Return whether operations that are captured into CUDA graphs are recorded."""
    return environment.get(GRAPHS_VARIABLE, "").lower() not in ("0", "false", "no", "off")


def mark(kind: int, number: int, name: str = "", count: int = 0) -> bool:
    """Write a mark into the ring; return False if there is none, or it is full.

    Args:
        kind: STEP_MARK (the step `number` begins, -1: none does), RANGE_BEGIN, RANGE_END or GRAPH_REPLAY.
        number: the step, or the id of the range or graph.
        name: of a range, or the sums of the step before (ipc/host_sums.py); what goes beyond NAME_BYTES is cut off.
        count: of a step, the source of its number.
    """
    plugin = load()
    if plugin is None:
        return False
    text = name.encode(errors="replace")
    if len(text) > NAME_BYTES:
        text = text[:NAME_BYTES].decode(errors="ignore").encode()
    return bool(plugin.drumline_mark(kind, number, text, count) == 0)
