"""Starts the decoder process beside a GPU process, and checks whether it is alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys

#: prctl(2): sets the process that may read this one's memory where Yama restricts that.
PR_SET_PTRACER = 0x59616D61


def start(pool_fd: int, events_fd: int) -> int:
    """Start the decoder, detached so that the job never waits for it, and return its pid. Raises OSError.

    Blocks until the decoder has started, at most 30 s.
    """
    python = os.environ.get("DRUMLINE_PYTHON") or sys.executable
    packages = os.environ.get("DRUMLINE_PACKAGES", "")
    environment = dict(os.environ, DRUMLINE_ATTACH="0", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = packages
    command = [python, "-m", "drumline.producers.decoder.main", str(pool_fd), str(events_fd), str(os.getpid())]
    done = subprocess.run(
        command,
        pass_fds=(pool_fd, events_fd),
        env=environment,
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    answer = done.stdout.split()[-2:]  # a sitecustomize.py of the job may print before
    if done.returncode or len(answer) != 2 or not all(number.isdigit() for number in answer):
        raise OSError(f"the decoder does not start (exit {done.returncode}): {' '.join(command)}")
    pid, may_read = map(int, answer)
    if not may_read:  # Yama allows one reader: name it, unless the job has allowed readers itself
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, pid, 0, 0, 0)
    return pid


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: a container without an init does not reap it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
