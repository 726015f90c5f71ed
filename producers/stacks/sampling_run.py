"""One sampling of one process: two py-spy in processes of their own, and polls of the main thread's system call.

py-spy reads the memory of the process (process_vm_readv) and never stops it (`--nonblocking`). Native frames would need
a stop, so there are none. The second py-spy sees only the thread that holds the GIL: a format with both has one
sample, not a hundred.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from drumline.producers.host.gil import GilPoll
from drumline.producers.stacks.folding import FoldedStacks, fold
from drumline.producers.stacks.permission import Denied, NoProcess, Subject
from drumline.producers.stacks.speedscope import MAX_BYTES, BadOutput, ThreadSamples, read_samples

#: Length of a sampling, and samples a second.
LENGTH_S, RATE = 2, 50
#: Length of that of a suspect at least, and the parts that it is published in, which show how much shares of time vary:
#: so a part must hold a step. A share of 10 % differs from none beyond chance in 500 samples, and in 100 it does not.
SUSPECT_LENGTH_S, SUSPECT_PARTS = 10, 20
#: Time after the sampling in which py-spy must end; s. It reads symbols first, and a loaded host has little for it.
END_S = 30.0
NICE = 10
#: Bounds of a py-spy, whatever the process lays in its way.
MEMORY_BYTES, CPU_S = 1 << 30, 10
KERNEL_DENIES = (
    "the kernel does not let the agent read this process: give the agent CAP_SYS_PTRACE, or, for processes of its own "
    "user, set /proc/sys/kernel/yama/ptrace_scope to 0"
)


class SamplingFailed(RuntimeError):
    """py-spy could not sample; the message has its reason."""


class NoPySpy(SamplingFailed):
    """py-spy is not installed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of a sampling, or of a part of it."""

    stacks: FoldedStacks
    pid: int
    gil_polls: int
    gil_waiting: int


def py_spy() -> str:
    """Return the path of py-spy: beside this Python, else on PATH. Raises NoPySpy."""
    beside = Path(sys.executable).parent / "py-spy"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if path is None:
        raise NoPySpy("py-spy is not installed, so no stacks are sampled: pip install 'drumline[gpu]'")
    return path


class PySpy:
    """A py-spy that runs. `finish` ends it in any case."""

    def __init__(self, program: str, pid: int, length_s: int, *options: str) -> None:
        """Start it. Raises OSError."""
        self._out: BinaryIO = os.fdopen(os.memfd_create("py-spy-out"), "w+b")
        self._notes: BinaryIO = os.fdopen(os.memfd_create("py-spy-notes"), "w+b")
        output = f"/dev/fd/{self._out.fileno()}"  # py-spy prints notes on stdout
        command = [
            program, "record", "--pid", str(pid), "--nonblocking", "--threads", "--full-filenames", "--rate", str(RATE),
            "--duration", str(length_s), "--format", "speedscope", "--output", output, *options,
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._notes,
                stderr=self._notes,
                pass_fds=(self._out.fileno(),),
                env={"LC_ALL": "C.UTF-8"},
            )
        except OSError:
            self._close()
            raise
        with suppress(OSError):  # it ended at once
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
            for limit, most in (
                (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_FSIZE, MAX_BYTES),
            ):  # fmt: skip
                resource.prlimit(self._process.pid, limit, (most, most))

    def finish(self, timeout_s: float, parts: int = 1) -> list[list[ThreadSamples]]:
        """Wait for its end and return the samples of each part. Raises NoProcess, Denied, SamplingFailed."""
        try:
            code = self._process.wait(timeout_s)
            self._out.seek(0)
            self._notes.seek(0)
            notes = self._notes.read(1 << 16).decode(errors="replace")
            if code:
                raise _failure(code, notes)
            return read_samples(self._out.read(MAX_BYTES + 1), parts)
        except subprocess.TimeoutExpired:
            raise SamplingFailed(f"py-spy did not end within {timeout_s:.0f} s") from None
        except BadOutput as error:
            raise SamplingFailed(f"py-spy: {error}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._out.close()
        self._notes.close()


def _failure(code: int, notes: str) -> Exception:
    if "permission denied" in notes.lower():
        return Denied(KERNEL_DENIES)
    if "No such file" in notes or "No such process" in notes:
        return NoProcess("the process has exited")
    lines = [line for line in notes.splitlines() if line.startswith("Error: ")]
    return SamplingFailed(f"py-spy ended with {code}: {lines[0][7:207] if lines else 'no reason'}")


class Recording:
    """A sampling under way. The caller polls it until its length is over, and then finishes it.

    `parts`: of equal length. Who holds the GIL is sampled where there is one only: its samples have no time.
    """

    def __init__(self, subject: Subject, program: str, length_s: int = LENGTH_S, parts: int = 1) -> None:
        """Start it. Raises OSError."""
        self._subject, self._parts = subject, parts
        self._every_thread = PySpy(program, subject.pid, length_s, "--idle")
        self._holders: PySpy | None = None
        if parts == 1:
            try:
                self._holders = PySpy(program, subject.pid, length_s, "--gil")
            except OSError:
                self._every_thread.kill()
                raise
        self._gil = GilPoll(subject.pid)
        self._polls: list[tuple[int, int]] = [(0, 0)]

    def poll(self) -> None:
        """Read the main thread's system call."""
        self._gil.poll()
        self._polls.append((self._gil.polls, self._gil.waiting))

    def cancel(self) -> None:
        """End it without a result."""
        self._every_thread.kill()
        if self._holders is not None:
            self._holders.kill()
        self._gil.close()

    def finish(self) -> list[Recorded]:
        """Return what was sampled in each part. Raises NoProcess, Denied, SamplingFailed."""
        try:
            samples = self._every_thread.finish(END_S, self._parts)
            holders = [[]] * self._parts if self._holders is None else self._holders.finish(END_S)
        finally:
            self.cancel()
        if Subject.of(self._subject.pid, self._subject.inner) != self._subject:
            raise NoProcess("another process has its number now")
        pids = {self._subject.pid, self._subject.inner}
        folded = [fold(pids, *of_part) for of_part in zip(samples, holders, strict=True)]
        if not all(stacks.rows for stacks in folded):
            raise SamplingFailed("py-spy saw no Python thread")
        last = len(self._polls) - 1
        ends = [self._polls[last * part // self._parts] for part in range(self._parts + 1)]
        return [
            Recorded(stacks, self._subject.pid, polls - polls_before, waiting - waiting_before)
            for stacks, ((polls_before, waiting_before), (polls, waiting)) in zip(folded, pairwise(ends), strict=True)
        ]
