"""Faults of a rank, and the plan that says when each of them is on; for tests/gpu/causes_job.py.

A plan is a JSON file: `folder`, shared by the ranks, `settle`, steps before it begins, and `phases`, each
[fault, rank or -1 for all, seconds]. Rank 0 writes when it begins, and at its end the last step of all ranks.
"""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from phase_clock import phase_at, write_whole

#: What a fault costs the rank in each step; s.
STALL_S = float(os.environ.get("CAUSES_STALL_S", "0.025"))
#: Steps between two checkpoints, and between two collections of garbage; each takes as long as that many stalls.
PERIOD = 4
FILE_BYTES = 256 << 20
SO_MAX_PACING_RATE, UNLIMITED = 47, (1 << 64) - 1
#: Steps that other ranks may be ahead of rank 0.
AHEAD = 40


class Fault:
    """Nothing: a healthy phase. `begin` and `end` are called between steps, `stall` in each, `prepare` before all."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    def prepare(self) -> None: ...

    def begin(self) -> None: ...

    def stall(self, step: int) -> None: ...

    def end(self) -> None: ...


class Flag(Fault):
    """Sets a byte that the data set reads, in this process or in a worker, or the model."""

    def prepare(self) -> None:
        self.byte = mmap.mmap(-1, 1)

    def begin(self) -> None:
        self.byte[0] = 1

    def end(self) -> None:
        self.byte[0] = 0

    def __bool__(self) -> bool:
        return self.byte[0] > 0


class GarbageCollection(Fault):
    """Many objects, and collections of all of them in every fourth step."""

    def begin(self) -> None:
        self.kept = [[{}] for _ in range(50_000)]

    def stall(self, step: int) -> None:
        until = time.perf_counter() + PERIOD * STALL_S
        while step % PERIOD == 0 and time.perf_counter() < until:
            gc.collect()

    def end(self) -> None:
        self.kept = []


class Checkpoint(Fault):
    """Saves in every fourth step, for as long as four stalls."""

    def prepare(self) -> None:
        self.state, self.path = {"weights": torch.zeros(2 << 20)}, Path(self.argument, f"save-{os.getpid()}.pt")

    def stall(self, step: int) -> None:
        until = time.perf_counter() + PERIOD * STALL_S
        while step % PERIOD == 0 and time.perf_counter() < until:
            torch.save(self.state, self.path)


class PythonLock(Fault):
    """A thread that computes in Python half of the time, and the main thread's launches wait for the GIL."""

    def begin(self) -> None:
        self.going = True
        threading.Thread(target=self.tokenize, daemon=True).start()

    def tokenize(self) -> None:
        while self.going:
            until, count = time.perf_counter() + STALL_S, 0
            while time.perf_counter() < until:
                count += 1
            time.sleep(STALL_S)

    def end(self) -> None:
        self.going = False


class CpuContention(Fault):
    """Other programs on this rank's cores."""

    def begin(self) -> None:
        count = len(os.sched_getaffinity(0))
        busy = ["sh", "-c", "while :; do :; done"]
        self.stress = [subprocess.Popen(busy, env={"PATH": os.environ["PATH"]}) for _ in range(count)]

    def end(self) -> None:
        for other in self.stress:
            other.kill()
            other.wait()


class CpuThrottled(Fault):
    """A quota of half a core for this rank's cgroup, which causes.py made."""

    def quota(self, text: str) -> None:
        if "CAUSES_CGROUP" not in os.environ:
            raise OSError("no cgroup may be made here")
        Path(os.environ["CAUSES_CGROUP"], "cpu.max").write_text(text)

    def begin(self) -> None:
        self.quota("50000 100000")

    def end(self) -> None:
        self.quota("max 100000")


class PageFaults(Fault):
    """Reads a file through memory that was taken out of the cache."""

    def prepare(self) -> None:
        self.path = Path(self.argument, f"pages-{os.getpid()}")
        with self.path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        self.file = os.open(self.path, os.O_RDONLY)
        self.memory = mmap.mmap(self.file, FILE_BYTES, prot=mmap.PROT_READ)
        self.memory.madvise(mmap.MADV_RANDOM)
        self.offset = 0

    def stall(self, step: int) -> None:
        until = time.perf_counter() + STALL_S
        while time.perf_counter() < until:
            if self.offset == 0:
                self.memory.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
            for _ in range(16):
                self.memory[self.offset]
                self.offset = (self.offset + 16 * mmap.PAGESIZE) % FILE_BYTES


class Disk(Fault):
    """Writes and waits until the disk has it."""

    def prepare(self) -> None:
        self.file = os.open(Path(self.argument, f"log-{os.getpid()}"), os.O_RDWR | os.O_CREAT)

    def stall(self, step: int) -> None:
        until = time.perf_counter() + STALL_S
        while time.perf_counter() < until:
            os.pwrite(self.file, bytes(1 << 20), 0)
            os.fsync(self.file)


class SharedGpu(Fault):
    """A second process on this rank's GPU."""

    def prepare(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("causes_job.py")), "neighbour"]
        plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NCCL_PROFILER_PLUGIN")}
        self.other = subprocess.Popen(command, stdin=subprocess.PIPE, env=plain)

    def begin(self) -> None:
        self.other.stdin.write(b"go\n")
        self.other.stdin.flush()

    def end(self) -> None:
        self.other.kill()
        self.other.wait()


class SlowLink(Fault):
    """A rate limit on this rank's own TCP connections; bytes a second each. The kernel paces them, without tc."""

    def limit(self, rate: int) -> None:
        paced = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as connection:
                        is_tcp = connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX
                        if is_tcp and connection.getpeername():
                            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate.to_bytes(8, "little"))
                            paced += 1
        print(json.dumps({"paced": paced, "bytes_a_second": rate}), flush=True)

    def begin(self) -> None:
        self.limit(int(float(self.argument)))

    def end(self) -> None:
        self.limit(UNLIMITED)


FAULTS = {
    "healthy": Fault,
    "data_loader": Flag,
    "garbage_collection": GarbageCollection,
    "checkpoint": Checkpoint,
    "python_lock": PythonLock,
    "cpu_contention": CpuContention,
    "cpu_throttled": CpuThrottled,
    "page_faults": PageFaults,
    "disk": Disk,
    "synchronisation": Flag,
    "batch": Flag,
    "save": Flag,
    "shared_gpu": SharedGpu,
    "slow_link": SlowLink,
}


class Plan:
    """Says what this rank does when. The job calls `step` once in each step and ends when it says so."""

    def __init__(self, rank: int) -> None:
        plan = json.loads(Path(os.environ["CAUSES_PLAN"]).read_text())
        self.rank, self.folder, self.settle = rank, Path(plan["folder"]), plan["settle"]
        self.phases = [(fault, on, seconds) for fault, on, seconds in plan["phases"]]
        self.steps, self.began, self.now, self.last = 0, 0.0, -1, None
        self.faults: dict[str, Fault] = {}
        for text, on, _ in self.phases:
            name, _, argument = text.partition(":")
            if name not in FAULTS:
                raise ValueError(f"no fault {name}")
            fault = self.faults.setdefault(text, FAULTS[name](argument or os.environ["CAUSES_DISK"]))
            if on in (rank, -1) and not getattr(fault, "is_prepared", False):
                fault.is_prepared = True
                self.guarded(fault.prepare, text)

    def on(self, name: str) -> bool:
        """Return whether a flag is set."""
        fault = self.faults.get(name)
        return isinstance(fault, Flag) and hasattr(fault, "byte") and bool(fault)

    def guarded(self, call, text: str) -> bool:
        """Call, and report what was refused."""
        try:
            call()
        except Exception as error:
            self.report(refused=text, why=f"{type(error).__name__}: {error}"[:300])
            return False
        return True

    def report(self, **values: object) -> None:
        print(json.dumps({"rank": self.rank, "step": self.steps, "time_ns": time.time_ns(), **values}), flush=True)

    def step(self) -> bool:
        """End a step; return whether it was the last."""
        self.steps += 1
        if not self.began:
            self.begin()
            return False
        elapsed = time.time() - self.began
        at = phase_at((seconds for *_, seconds in self.phases), elapsed)
        if elapsed >= 0 and at != self.now:
            self.change(at)
        if 0 <= self.now < len(self.phases):
            fault, on, _ = self.phases[self.now]
            if on in (self.rank, -1):
                self.faults[fault].stall(self.steps)
        return self.is_last()

    def begin(self) -> None:
        path = self.folder / "began"
        if self.rank == 0 and self.steps == self.settle:
            write_whole(path, str(time.time() + 0.5))
        if path.exists():
            self.began = float(path.read_text())

    def change(self, to: int) -> None:
        """End a phase and begin another."""
        for at, name in ((self.now, "end"), (to, "begin")):
            if 0 <= at < len(self.phases):
                fault, on, _ = self.phases[at]
                done = on not in (self.rank, -1) or self.guarded(getattr(self.faults[fault], name), fault)
                self.report(**{name: fault, "on": on, "phase": at, "done": done})
        self.now = to

    def is_last(self) -> bool:
        path = self.folder / "last"
        if self.rank == 0 and self.now == len(self.phases) and self.last is None:
            write_whole(path, str(self.steps + AHEAD))
        if self.last is None and path.exists():
            self.last = int(path.read_text())
        return self.last is not None and self.steps >= self.last


def no_core_dumps() -> None:
    """A killed job leaves nothing behind."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
