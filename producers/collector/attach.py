"""Attaches drumline to this process, as its policy states, and implements the calls that user code may make.

`attach` opens the ring for marks (light, auto), or finds CUPTI and makes an `Attachment`. It never raises: a job
without telemetry is better than no job. An error is written once to stderr, and is in `status()`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.collector import host_time, late, marks, process_info
from drumline.producers.collector.attachment import Attachment
from drumline.producers.collector.marks import scope, step
from drumline.producers.identity import is_first_on_host, missing_run_scope
from drumline.producers.identity import place as process_place
from drumline.producers.ipc.control import FILE, chosen, read_requests
from drumline.producers.ipc.events import warn
from drumline.producers.ipc.policy import AUTO, BadPolicy, Policy, parse, read_policy_text
from drumline.producers.nccl_profiler import library

#: Time between two announcements of a job that waits for a policy; s.
ANNOUNCE_S = 1.0
#: Variables that name a libcupti. Other profilers set them, and so does `prepare`, for this process and its children.
_INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
__all__ = ["attach", "scope", "status", "step"]
_States = tuple[tuple[int, ...], ...]
#: Returns the name of the profiler that has CUPTI now, "" if none has; torch_hooks sets it.
current_profiler: Callable[[], str] = str

_attached: Attachment | None = None
_status = "not attached"
_lock = threading.Lock()


def attach(policy: str = "", *, cupti: cupti_library.Cupti | None = None, active_profiler: str = "") -> bool:
    """Start collecting in this process, once, and return whether it is attached. Never raises.

    Call it before the first CUDA work, or leave it to `drumline run`. `policy`: as in policy.py, else
    DRUMLINE_COLLECT__POLICY. `active_profiler`: another profiler that has CUPTI until `collector.resume_after`.
    """
    global _status
    with _lock:
        if _attached is not None or marks.ring is not None or marks.at_mark is not None:
            return True
        try:
            chosen = parse(policy or os.environ.get("DRUMLINE_COLLECT__POLICY") or "always")
            if chosen.uses_ring:
                _use_ring(chosen)
                if chosen.mode == AUTO:
                    _open_at_mark(chosen, cupti)
                elif chosen.counts:
                    _use_cupti_if_there(cupti, chosen, active_profiler)
            elif late.is_waiting(os.environ):
                _wait_for_policy(chosen, cupti)
            else:
                _use_cupti(cupti, chosen, active_profiler)
            if is_first_on_host(os.environ) and (unit := missing_run_scope(os.environ)):
                warn(f"each {unit} has its own run id, they are not compared: drumline run --run NAME, equal on all")
            return True
        except (BadPolicy, Exception) as error:
            _status = f"not attached: {error or type(error).__name__}"
            warn(_status)
            return False


def _use_ring(policy: Policy) -> None:
    """Let the job's marks go into the ring. `_lock` is held. Raises RuntimeError without one."""
    global _status
    if library.path() is None:
        raise RuntimeError("drumline was installed without its NCCL plugin: pip install it where there is a C compiler")
    if not os.environ.get(library.FOLDER_VARIABLE):
        raise RuntimeError(f"policy {policy} needs `drumline run`, which makes NCCL load drumline's plugin")
    marks.ring, _status = library.mark, str(policy)
    os.register_at_fork(after_in_child=_forget)


def _wait_for_policy(policy: Policy, cupti: cupti_library.Cupti | None) -> None:
    """Attach nothing until a mark of the job finds that a policy wants CUPTI. `_lock` is held."""
    global _status
    _status = f"{policy}: waits for a policy"
    os.register_at_fork(after_in_child=_forget)
    atexit.register(late.withdraw)
    _open_at_mark(policy, cupti)


def _open_at_mark(policy: Policy, cupti: cupti_library.Cupti | None) -> None:
    """Attach CUPTI at the first mark that finds a policy which wants it in the control file. `_lock` is held."""
    is_late, root = late.is_waiting(os.environ), os.environ.get("DRUMLINE_SPOOL__ROOT", "")
    files = [os.path.join(root, name) for name in ("policy", FILE)]
    announce_at = 0.0
    seen: _States = ()

    def open_window() -> None:
        nonlocal announce_at, seen
        if is_late and time.monotonic() >= announce_at:
            announce_at = time.monotonic() + ANNOUNCE_S
            with contextlib.suppress(Exception):  # the policy counts all the same
                late.announce(root, process_place(os.environ, {}).job)
        states = _states(files)
        if seen == states or not root:  # the agent renews what is in force once a second
            return
        with contextlib.suppress(ValueError, OSError):  # as the decoder of a process that has one; then once more
            if not _wanted_policy(Path(root)).uses_cupti:
                seen = states
                return
            seen = states
            marks.at_mark = None
            with _lock:
                if not _use_cupti_if_there(cupti, policy, current_profiler()):  # its decoder reads the file
                    return
            if is_late:
                late.withdraw()
                host_time.install()

    marks.at_mark = open_window


def _states(paths: list[str]) -> _States:
    """Return what differs once one of the files has been written, renewed, replaced or removed."""
    states = []
    for path in paths:
        state: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            state = (about.st_ino, about.st_size, about.st_ctime_ns)
        states.append(state)
    return tuple(states)


def _wanted_policy(root: Path) -> Policy:
    """Return the policy of the host's file, else what is asked from afar. Raises OSError, ValueError."""
    text = read_policy_text(root / "policy")
    if not text and (requests := read_requests(root)):
        where = process_place(os.environ, process_info.place())
        request = chosen(requests, where, time.time_ns())
        text = request.policy if request is not None else ""
    return parse(text or "off")


def _use_cupti_if_there(cupti: cupti_library.Cupti | None, policy: Policy, active_profiler: str) -> bool:
    """Attach CUPTI beside the ring, or warn that it can't be; return whether it is attached. `_lock` is held."""
    try:
        _use_cupti(cupti, policy, active_profiler)
    except Exception as error:
        note = "; NCCL's operations are still recorded" if marks.ring is not None else ""
        warn(f"no CUPTI in this process: {error or type(error).__name__}{note}")
        return False
    return True


def _use_cupti(cupti: cupti_library.Cupti | None, policy: Policy, active_profiler: str) -> None:
    """Attach CUPTI: in the thread that begins to use CUDA, else in one that marks, where it is in no NVTX call.

    `_lock` is held. Raises NoCupti, OSError, ValueError.
    """
    global _attached, _status
    _attached = Attachment(cupti or cupti_library.load(prepare()), policy, active_profiler)
    _status, marks.decoder = "attached", _attached.mark
    if policy.uses_ring:
        marks.at_mark = _attached.collector.resume
    host_time.install_waiting()
    atexit.register(_end)
    if util := sys.modules.get("multiprocessing.util"):  # a process that it forked ends without atexit
        util.Finalize(None, _end, exitpriority=-1_000)
    os.register_at_fork(after_in_child=_forget)


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


def status() -> str:
    """Return the state of collecting in this process, as text."""
    return _attached.collector.state if _attached else _status


def attached() -> Attachment | None:
    """Return the attachment of this process, or None."""
    return _attached


def _end() -> None:
    if _attached is not None:
        with contextlib.suppress(Exception):
            _attached.close()


def _forget() -> None:
    """Detach in the child of a fork: a data loader that marks gets no ring, and no CUPTI where CUDA cannot work."""
    global _attached, _status, _lock
    _lock = threading.Lock()  # another thread may have held it
    if _attached is not None:
        _attached.forget()
    marks.decoder = marks.ring = marks.at_mark = marks.at_next_step = None
    late.forget()
    _attached, _status = None, "not attached: child of a fork"
