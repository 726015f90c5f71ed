"""Host time that the job spends on loading data, collecting garbage, saving checkpoints, and waiting for the GPU.

PyTorch's functions are wrapped in place; a part counts once, however its functions call each other. Only the main
thread's time counts, which launches the kernels, and garbage collections of any thread: they hold the GIL. A wrapper
passes on all that its function returns and raises.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from time import perf_counter_ns
from typing import Any

from drumline.producers.ipc.host_sums import to_text

LOAD, GC, CHECKPOINT, SYNC = range(4)
_SAVER = "torch.distributed.checkpoint.state_dict_saver"
#: (module with the function, its path there, other modules that may have it too, part). Wrapped once it is imported.
_FUNCTIONS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", (), LOAD),
    ("torch.utils.data.dataloader", "DataLoader.__iter__", (), LOAD),  # starts workers in each epoch
    ("torch.serialization", "save", ("torch",), CHECKPOINT),
    (_SAVER, "save", ("torch.distributed.checkpoint",), CHECKPOINT),
    (_SAVER, "async_save", ("torch.distributed.checkpoint",), CHECKPOINT),
    # Under `save_file`, which transformers and others import under names of their own: it copies tensors from the GPU,
    # by one of the first two, and then writes.
    ("safetensors.torch", "_flatten", (), CHECKPOINT),
    ("safetensors.torch", "_flatten_as_ptr", (), CHECKPOINT),
    ("safetensors.torch", "serialize_file", (), CHECKPOINT),
)
#: The same, while CUPTI is attached: a call that waits for the GPU takes no time where nothing has to be waited for.
_WAITING = (("torch.cuda", "synchronize", (), SYNC), ("torch", "Tensor.item", (), SYNC))
_Function = tuple[str, str, tuple[str, ...], int]

_totals = [0, 0, 0, 0]
_inside = [False, False, False, False]
_pending: list[_Function] = []
#: Number of parts that are measured: 0, 3, or 4 with SYNC.
_measured = 0
_with_waiting = False
_gc_began = 0


def install() -> None:
    """Begin to measure, once. Never raises."""
    global _measured
    if not _measured:
        _measured = SYNC
        gc.callbacks.append(_collecting)
        _pending.extend(_FUNCTIONS)
        with contextlib.suppress(Exception):
            import_module("torch.utils.data.dataloader")
        _wrap_pending()
        if _with_waiting:
            install_waiting()


def install_waiting() -> None:
    """Measure the waiting for the GPU too, from `install` on. Never raises."""
    global _measured, _with_waiting
    _with_waiting = True
    if _measured == SYNC:
        _measured = SYNC + 1
        _pending.extend(_WAITING)
        _wrap_pending()


def since(before: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the sums since `before` as text (ipc/host_sums.py), and what to pass next time; () begins."""
    if _pending:
        _wrap_pending()
    now = tuple(_totals[:_measured])
    return to_text([after - ns for ns, after in zip(before, now, strict=False)]), now


def timed(call: Callable[..., Any], part: int) -> Callable[..., Any]:
    """Return a function that adds the time of its calls in the main thread to a part."""

    @functools.wraps(call)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if _inside[part] or threading.current_thread() is not threading.main_thread():
            return call(*arguments, **named)
        _inside[part] = True
        began = perf_counter_ns()
        try:
            return call(*arguments, **named)
        finally:
            _totals[part] += perf_counter_ns() - began
            _inside[part] = False

    return wrapped


def _collecting(phase: str, info: dict[str, int]) -> None:
    global _gc_began
    if phase == "start":
        _gc_began = perf_counter_ns()
    elif _gc_began:
        _totals[GC] += perf_counter_ns() - _gc_began
        _gc_began = 0


def _wrap_pending() -> None:
    """Wrap what is imported by now; what is not there in this PyTorch is given up."""
    for entry in [entry for entry in _pending if entry[0] in sys.modules]:
        module, path, modules, part = entry
        holder, (*parents, name) = sys.modules[module], path.split(".")
        if getattr(getattr(holder, "__spec__", None), "_initializing", False):
            continue
        _pending.remove(entry)
        with contextlib.suppress(Exception):
            for parent in parents:
                holder = getattr(holder, parent)
            call = getattr(holder, name)
            wrapped = timed(call, part)
            setattr(holder, name, wrapped)
            for other in modules:
                if getattr(sys.modules.get(other), name, None) is call:
                    setattr(sys.modules[other], name, wrapped)
