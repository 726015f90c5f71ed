"""Hooks into PyTorch: the first use of CUDA, the start and end of its profiler, optimizer steps, CUDA graphs.

Nothing is loaded and nothing runs before CUDA is used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from importlib import import_module
from typing import Any

from drumline.producers.collector import attach, host_time, late, marks, process_info
from drumline.producers.ipc.events import warn
from drumline.producers.nccl_profiler import library

PROFILER = "the PyTorch profiler"
#: Profilers that run now and have CUPTI for themselves; they may have started before CUDA was used.
_running: set[str] = set()


def imported(torch: Any) -> None:
    """Prepare to attach at the first use of CUDA; called after `import torch`.

    NVTX must find CUPTI before its first call, unless CUPTI is never attached.
    """
    if torch.version.cuda is None:
        return
    if os.environ.get("DRUMLINE_COLLECT__POLICY") != "light":
        with contextlib.suppress(Exception):
            if not late.is_waiting(os.environ):  # NVTX that finds CUPTI costs a call for each range, for ever
                attach.prepare()
        with contextlib.suppress(Exception):
            profiler(import_module("torch.autograd.profiler"))
    torch.cuda._lazy_call(cuda_used)


def cuda_used() -> None:
    """Attach; called when CUDA is initialised, by Python or from C++. Never raises."""
    if not os.environ.get("DRUMLINE_PYTHON"):
        warn("not attached: drumline run's PYTHONPATH is set, DRUMLINE_* is not; let the launcher pass both on")
        return
    process_info.place, attach.current_profiler = place, running_profiler
    if attach.attach(active_profiler=running_profiler()):
        if not late.is_waiting(os.environ):
            host_time.install()
        with contextlib.suppress(Exception):
            optimizers = import_module("torch.optim.optimizer")  # torch.optim hides it under its own name
            optimizers.register_optimizer_step_post_hook(_Steps())
        with contextlib.suppress(Exception):
            graphs(import_module("torch.cuda.graphs").CUDAGraph)


def running_profiler() -> str:
    """Return the name of a profiler that has CUPTI for itself now, "" without one."""
    return next(iter(_running), "")


def place() -> dict[str, int]:
    """Return rank and world size from torch.distributed, or {}.

    Processes that torch.multiprocessing or vLLM starts have no variables for them.
    """
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    return {}


def profiler(module: Any) -> None:
    """Yield CUPTI to PyTorch's profiler while it runs. `module`: torch.autograd.profiler."""

    def around(name: str, before: bool) -> None:
        call = getattr(module, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before:
                _running.add(PROFILER)
                with contextlib.suppress(Exception):
                    if attachment := attach.attached():
                        attachment.collector.yield_to(PROFILER)
            try:
                return call(*arguments, **named)
            finally:
                if not before:
                    _running.discard(PROFILER)
                    with contextlib.suppress(Exception):
                        if attachment := attach.attached():
                            attachment.collector.resume_after(PROFILER)

        setattr(module, name, wrapped)

    around("_prepare_profiler", before=True)
    around("_enable_profiler", before=True)
    around("_disable_profiler", before=False)


def graphs(kind: Any) -> None:
    """Mark each replay of a CUDA graph, and that one was captured. `kind`: torch.cuda.CUDAGraph.

    NCCL gives each captured operation that is recorded a host function, which delays every replay. Where graphs are
    not to be recorded, recording is off while one is captured.
    """
    replay, begin, end = kind.replay, kind.capture_begin, kind.capture_end
    pauses = marks.ring is not None and not library.records_graphs(os.environ)

    @functools.wraps(replay)
    def replayed(graph: Any, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(Exception):
            marks.graph_replayed(graph)
        return replay(graph, *arguments, **named)

    @functools.wraps(begin)
    def captured(graph: Any, *arguments: Any, **named: Any) -> Any:
        marks.graph_was_captured = True
        if attachment := attach.attached():
            attachment.collector.wait_for_finalize()
        library.time_all(True)  # what is captured unmeasured stays so at each replay
        if pauses:
            library.record(False)
        with contextlib.suppress(Exception):
            setattr(graph, marks.CAPTURED, (library.captured(), 0))
        try:
            return begin(graph, *arguments, **named)
        except BaseException:
            if pauses:
                library.record(True)
            raise

    @functools.wraps(end)
    def ended(graph: Any, *arguments: Any, **named: Any) -> Any:
        try:
            result = end(graph, *arguments, **named)
        finally:
            if pauses:
                library.record(True)
        with contextlib.suppress(Exception):
            setattr(graph, marks.CAPTURED, (getattr(graph, marks.CAPTURED)[0], library.captured()))
        return result

    kind.replay, kind.capture_begin, kind.capture_end = replayed, captured, ended


class _Steps:
    """Marks optimizer steps as steps of a job that marks none itself.

    Follows the optimizer that stepped first, and after that one is freed (a failed batch size, a warm-up) the next.
    """

    def __init__(self) -> None:
        self._number = 0
        self._optimizer: Any = lambda: None
        self._series = marks.StepSeries("optimizer step", marks.FROM_OPTIMIZER)

    def __call__(self, optimizer: Any, arguments: Any, named: Any) -> None:
        with contextlib.suppress(Exception):  # this runs inside the job's optimizer.step()
            self._stepped(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        followed = self._optimizer()
        if followed is not None and followed is not optimizer:
            return
        if followed is None:
            self._optimizer = weakref.ref(optimizer)
        self._series.begin(self._number)
        self._number += 1
