"""What drumline asks of PyTorch: to say when CUDA is first used, when its profiler runs, when an optimizer has stepped.

Nothing is loaded and nothing runs before CUDA is used. Standard library only: this runs inside the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from importlib import import_module
from typing import Any

from drumline.producers.collector import attach

PROFILER = "the PyTorch profiler"
#: What runs now of what has CUPTI for itself. It may have begun before CUDA was used, and so before we attach.
_running: set[str] = set()


def imported(torch: Any) -> None:
    """PyTorch was imported: attach once CUDA is used. NVTX must know of CUPTI before its first call."""
    if torch.version.cuda is None:
        return
    with contextlib.suppress(Exception):
        attach.prepare()
    with contextlib.suppress(Exception):
        profiler(import_module("torch.autograd.profiler"))
    torch.cuda._lazy_call(cuda_used)


def cuda_used() -> None:
    """CUDA is being initialised, by Python or from C++. Never raises."""
    if not os.environ.get("DRUMLINE_PYTHON"):
        attach.say(
            "not attached: drumline run's PYTHONPATH came here, DRUMLINE_* did not; let the launcher pass both on"
        )
    elif attach.attach(aside=next(iter(_running), "")):
        one = attach.attached()
        if one:
            one.place = place
        with contextlib.suppress(Exception):
            optimizers = import_module("torch.optim.optimizer")  # torch.optim hides it under its own name
            optimizers.register_optimizer_step_post_hook(_Steps())


def place() -> dict[str, int]:
    """Rank and world size, where torch.distributed knows them: processes that torch.multiprocessing or vLLM starts have
    no variables that tell."""
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    return {}


def profiler(module: Any) -> None:
    """Leave CUPTI to PyTorch's profiler while it runs."""

    def around(name: str, before: bool) -> None:
        call = getattr(module, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before:
                _running.add(PROFILER)
                with contextlib.suppress(Exception):
                    if one := attach.attached():
                        one.collector.yield_to(PROFILER)
            try:
                return call(*arguments, **named)
            finally:
                if not before:
                    _running.discard(PROFILER)
                    with contextlib.suppress(Exception):
                        if one := attach.attached():
                            one.collector.resume_after(PROFILER)

        setattr(module, name, wrapped)

    around("_prepare_profiler", before=True)
    around("_enable_profiler", before=True)
    around("_disable_profiler", before=False)


class _Steps:
    """Optimizer steps as steps of the job, for one that names none: of the optimizer that stepped first, and when that
    one is no more (a batch size that did not fit, a warm-up), of the next."""

    def __init__(self) -> None:
        self._number = 0
        self._optimizer: Any = lambda: None
        self._id = attach.new_id()

    def __call__(self, optimizer: Any, arguments: Any, named: Any) -> None:
        with contextlib.suppress(Exception):  # this runs inside the job's optimizer.step()
            self._stepped(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        one, mine = attach.attached(), self._optimizer()
        if one is None or (mine is not None and mine is not optimizer):
            return
        if mine is None:
            self._optimizer = weakref.ref(optimizer)
        if self._number:
            one.mark(4, self._id, "")
        self._id = attach.new_id()
        one.mark(2, self._id, f"optimizer step {self._number}")
        self._number += 1
