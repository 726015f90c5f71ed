"""Runs one rank of a DDP job for `drumline bench overhead`, block by block as its standard input says.

usage: python -m drumline.lab.bench.overhead.ddp_job MODE WORKLOAD... (RANK, WORLD_SIZE and STORE_FILE set)

Prints a JSON object when it is ready, and one for each line `WORKLOAD STEPS [PAIRS]`; ends at the end of its input.
Between blocks it rests, so that the processes of several modes share the GPUs in turn. With PAIRS it switches the
recording off and on, in blocks of STEPS. Python's garbage collector runs only between blocks, in all modes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from drumline.lab.bench.overhead.job import gpu_bound
from drumline.producers.collector import marks
from drumline.producers.nccl_profiler import library
from drumline.producers.rings.ring_file import HeaderField

#: Steps of a new process, alone on its GPU, before anything is timed: by then the light tier knows whether it measures
#: all steps.
WARM_UP = 100
#: Steps that are not timed: before a process is ready, of each turn, and after the recording was switched.
FIRST, SETTLE, SWITCHED = 5, 3, 1


def ddp_launch_bound(torch: Any, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Return a step of a transformer whose host launches more slowly than the GPU computes; it ends with a wait."""
    block = torch.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True, device="cuda")
    model = wrap(torch.nn.TransformerEncoder(block, 12, enable_nested_tensor=False))
    data = torch.randn(2, 256, 768, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def ddp_gpu_bound(torch: Any, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Return a step of large matrix products, about 60 ms on an H200; the host is ahead of the GPU."""
    return gpu_bound(torch, wrap, 12)


WORKLOADS = {f.__name__: f for f in (ddp_launch_bound, ddp_gpu_bound)}


def nvrx(step: Callable[[], None]) -> Callable[[], None]:
    """Let NVIDIA's resiliency extension time every kernel of every step."""
    detector = import_module("nvidia_resiliency_ext.attribution.straggler").Detector
    if not getattr(detector, "initialized", False):
        detector.initialize(gather_on_rank0=False, profiling_interval=1)

    def detected() -> None:
        with detector.detection_section("step", profile_cuda=True):
            step()

    return detected


#: Mode that `drumline run` starts -> its policy.
POLICIES = {"light": "light", "auto": "auto", "drumline": "always"}
#: All modes: nothing attached, drumline's, NVIDIA's resiliency extension, GPU Flight's trace.
MODES = ("plain", *POLICIES, "nvrx", "gpufl")


def ring_header() -> Sequence[int]:
    """Return the first numbers of this process's ring; zeros without one."""
    for path in Path(os.environ.get("DRUMLINE_RINGS__FOLDER") or "/nowhere").glob(f"{os.getpid()}-*.ring"):
        with path.open("rb") as file:
            return memoryview(file.read(8 * len(HeaderField))).cast("Q")
    return [0] * len(HeaderField)


def recorded_operations() -> tuple[int, int]:
    """Return the records in this process's ring and the version of NCCL's interface; (0, 0) without a ring."""
    header = ring_header()
    return header[HeaderField.WRITTEN], header[HeaderField.INTERFACE]


def counts() -> tuple[int, int]:
    """Return the records in this process's ring, and its steps without the GPU's times."""
    header = ring_header()
    return header[HeaderField.WRITTEN], header[HeaderField.UNTIMED_STEPS]


def timed(torch: Any, step: Callable[[], None], steps: int, settle: int = SETTLE) -> dict[str, Any]:
    """Run steps and return mean and median of their times, and the mean CPU of all threads of the process; ms a step.

    The median is of the host's times: of the steps themselves only if each waits for the GPU. `untimed`: share of the
    steps that were recorded without the GPU's times.
    """
    gc.collect()
    for _ in range(settle):
        step()
    torch.distributed.barrier()
    torch.cuda.synchronize()
    before, cpu, at = counts(), time.process_time(), [time.perf_counter()]
    for _ in range(steps):
        step()
        at.append(time.perf_counter())
    torch.cuda.synchronize()
    wall, cpu = time.perf_counter() - at[0], time.process_time() - cpu
    records, untimed = ((now - then) / steps for now, then in zip(counts(), before, strict=True))
    ms = {"ms": 1e3 * wall / steps, "median_ms": 1e3 * median(end - begin for begin, end in pairwise(at))}
    return {**ms, "cpu_ms": 1e3 * cpu / steps, "records": records, "untimed": untimed}


def paired(torch: Any, step: Callable[[], None], steps: int, pairs: int) -> dict[str, list[dict[str, Any]]]:
    """Return pairs of blocks, `on` and `off`: with NCCL's operations and steps recorded, and not. The order alternates.

    All ranks switch between the same two steps. Raises RuntimeError if that is not possible, or the ring was full.
    """
    blocks: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for number in range(pairs):
        for on in (False, True) if number % 2 else (True, False):
            torch.cuda.synchronize()
            torch.distributed.barrier()
            marks.ring = library.mark if on else None
            if not library.record(on):
                raise RuntimeError("recording can't be switched: no ring, or DRUMLINE_RINGS__RECORDS is too small")
            blocks[on].append(timed(torch, step, steps, SWITCHED))
    library.record(True)
    marks.ring = library.mark
    if dropped := ring_header()[HeaderField.DROPPED]:
        raise RuntimeError(f"{dropped} operations met a full ring: DRUMLINE_RINGS__RECORDS is too small")
    return {"on": blocks[True], "off": blocks[False]}


def pin_threads(cores: Sequence[int]) -> None:
    """Give the main thread the first of four or more cores, autograd's the second, and all other threads the rest.

    So that how the kernel places them makes no difference between processes.
    """
    if len(cores) < 4:
        return
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            is_autograd = (task / "comm").read_text().startswith("pt_autograd")
            os.sched_setaffinity(int(task.name), {cores[1]} if is_autograd else set(cores[2:]))
    os.sched_setaffinity(os.getpid(), {cores[0]})


def main() -> None:
    """Build all workloads, print that they are ready, and serve the blocks of standard input."""
    mode, names = sys.argv[1], sys.argv[2:]
    torch = import_module("torch")
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl",
        init_method=f"file://{os.environ['STORE_FILE']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        device_id=torch.device("cuda", rank),
    )

    def wrap(model: Any) -> Any:
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])

    steps = {name: WORKLOADS[name](torch, wrap) for name in names}
    if mode == "nvrx":
        steps = {name: nvrx(step) for name, step in steps.items()}
    for step in steps.values():
        timed(torch, step, FIRST)
    gc.freeze()
    gc.disable()
    pin_threads(sorted(os.sched_getaffinity(0)))
    print(json.dumps({"versions": _versions(torch), "attached": _attached(mode)}), flush=True)
    for line in sys.stdin:
        name, count, *pairs = line.split()
        run = partial(paired, pairs=int(pairs[0])) if pairs else timed
        print(json.dumps(run(torch, steps[name], int(count))), flush=True)
    torch.distributed.destroy_process_group()


def _attached(mode: str) -> bool:
    """Return whether what the mode names really records."""
    if mode in ("light", "auto"):
        records, interface = recorded_operations()
        return records > 0 and interface > 0
    if mode in POLICIES:
        return sys.modules["drumline.producers.collector.attach"].attached() is not None
    return True


def _versions(torch: Any) -> dict[str, str]:
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"PyTorch": torch.__version__, "NCCL": nccl, "interface": str(recorded_operations()[1])}


if __name__ == "__main__":
    main()
