"""Jobs that were started without `drumline run`, in an environment with the hook of `drumline hook install`.

Their policy is `off` unless the site sets DRUMLINE_COLLECT__POLICY. Then nothing is attached: at a step, at most four
times a second, they look whether a policy wants CUPTI now. Standard library only: it is imported inside the job.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import MutableMapping
from contextlib import suppress

from drumline.producers.identity import JOB, JOB_NAMES, LATE, MINTED_RUN, first_set, names_rank
from drumline.producers.ipc.plain_file import AGENT_USER, make_public_folder

#: Folder in the root of the spool: a file for each process that waits, with the name of its job.
WAITING = ".waiting"
#: Most characters of a job's name in an announcement.
MOST_OF_NAME = 1_024
#: Path of this process's announcement; its end is random, so that no user lays a file there before.
_announcement = ""


def prepare(environment: MutableMapping[str, str], python: str, root: str, agent: str = "") -> None:
    """Set the variables that `drumline run` would have set, where the site has not. For `import torch`.

    `python`: the one that drumline is installed in. `root`: of the spool. `agent`: its user, "" = root. A job is named
    by its script, not by the launcher that imported torch before it.
    """
    inherited = environment.get(LATE, "")
    if not first_set(environment, JOB_NAMES) or environment.get(JOB) == inherited:
        script = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
        environment[JOB] = script if script not in ("", "-c", "-m") else "python"
    environment[LATE] = environment.get(JOB) or "1"
    environment.setdefault("DRUMLINE_PYTHON", python)
    environment.setdefault("DRUMLINE_PACKAGES", environment.get("PYTHONPATH", ""))
    environment.setdefault("DRUMLINE_COLLECT__POLICY", "off")
    environment.setdefault("DRUMLINE_SPOOL__ROOT", root)
    if agent:
        environment.setdefault(AGENT_USER, agent)
    # Ranks of a launcher that imports no torch share it as their parent; other processes have a run of their own.
    pid = os.getppid() if names_rank(environment) else os.getpid()
    environment.setdefault(MINTED_RUN, f"{socket.gethostname()}-{pid}-{_start(pid)}")


def is_waiting(environment: MutableMapping[str, str]) -> bool:
    """Return whether nothing is to be attached until a policy asks for it."""
    return bool(environment.get(LATE)) and environment.get("DRUMLINE_COLLECT__POLICY") == "off"


def announce(root: str, job: str) -> None:
    """Tell the agent that a process of the job waits, or waits still: it then passes on what is asked of the job."""
    global _announcement
    folder = os.path.join(root, WAITING)
    with suppress(OSError):
        try:
            os.utime(_announcement if os.path.dirname(_announcement) == folder else "", follow_symlinks=False)
        except (FileNotFoundError, PermissionError):
            make_public_folder(root)
            make_public_folder(folder)
            name = f"{socket.gethostname()}-{os.getpid()}"[-180:]
            path = os.path.join(folder, f"{mark(job)}-{name}-{os.urandom(4).hex()}")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            _announcement = path
            with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(job[:MOST_OF_NAME])


def mark(job: str) -> str:
    """Return what the names of a job's announcements begin with: the agent reads one of each job."""
    return f"{zlib.crc32(job[:MOST_OF_NAME].encode(errors='replace')):08x}"


def withdraw() -> None:
    """Remove the announcement: the process has ended, or records."""
    with suppress(OSError):
        os.unlink(_announcement)


def forget() -> None:
    """Leave the announcement to the process that this one was forked from."""
    global _announcement
    _announcement = ""


def _start(pid: int) -> str:
    """Return the start of a process, by which its number is not another's."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
