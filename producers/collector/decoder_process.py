"""Starting the decoder beside a GPU process. Standard library only: this runs inside the job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys

#: prctl(2): who may read this process's memory where Yama restricts that.
PR_SET_PTRACER = 0x59616D61


def start(pool_fd: int, events_fd: int) -> int:
    """Start the decoder as nobody's child, so that the job never waits for it. Returns its pid. Raises OSError."""
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
    said = done.stdout.split()[-2:]  # a sitecustomize.py of the job's may speak first
    if done.returncode or len(said) != 2 or not all(word.isdigit() for word in said):
        raise OSError(f"the decoder does not start (exit {done.returncode}): {' '.join(command)}")
    pid, may_read = map(int, said)
    if not may_read:  # Yama: name it. There is one name only, so not in place of the job's own, which may be "all"
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, pid, 0, 0, 0)
    return pid


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried (a container without an init) does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
