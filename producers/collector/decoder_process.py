"""Starts a process of drumline, mostly the decoder, beside a process of the job, and checks whether it is alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence

#: prctl(2): sets the process that may read this one's memory where Yama restricts that.
PR_SET_PTRACER = 0x59616D61


def start(pool_fd: int, events_fd: int) -> int:
    """Start the decoder and return its pid. Raises OSError. Blocks until it has started, at most 30 s."""
    answer = start_program("drumline.producers.decoder.main", [pool_fd, events_fd])
    if len(answer) != 2:
        raise OSError(f"the decoder does not start: it answers {' '.join(answer)}")
    pid, may_read = map(int, answer)
    if not may_read:  # Yama allows one reader: name it, unless the job has allowed readers itself
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, pid, 0, 0, 0)
    return pid


def start_program(module: str, descriptors: Sequence[int]) -> list[str]:
    """Start a module of drumline beside this process, detached so that the job never waits for it.

    Its arguments are the descriptors, which it inherits, and this process's pid. Returns the numbers in its last line.
    Raises OSError. Blocks until it has started, at most 30 s.
    """
    python = os.environ.get("DRUMLINE_PYTHON") or sys.executable
    packages = os.environ.get("DRUMLINE_PACKAGES", "")
    environment = dict(os.environ, DRUMLINE_ATTACH="0", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = packages
    command = [python, "-m", module, *map(str, descriptors), str(os.getpid())]
    done = subprocess.run(
        command,
        pass_fds=tuple(descriptors),
        env=environment,
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    lines = done.stdout.splitlines()  # a sitecustomize.py of the job may print before
    answer = lines[-1].decode(errors="replace").split() if lines else []
    if done.returncode or not answer or not all(number.isdigit() for number in answer):
        raise OSError(f"drumline's process does not start (exit {done.returncode}): {' '.join(command)}")
    return answer


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: a container without an init does not reap it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
