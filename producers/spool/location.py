"""Folder and limits of a process's spool, from the environment of the process; the agent has the same defaults."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from drumline.infra.runtime import spool_defaults
from drumline.producers.ipc.plain_file import make_public_folder, real_folder
from drumline.producers.nccl_profiler.library import FOLDER_VARIABLE


def spool_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of all spools."""
    return Path(environment.get("DRUMLINE_SPOOL__ROOT") or spool_defaults.ROOT)


def spool_bytes(environment: Mapping[str, str]) -> int:
    """Return the most bytes of one process. Raises ValueError, which names the variable, for no positive number."""
    name = "DRUMLINE_SPOOL__MAX_MB"
    text = environment.get(name) or str(spool_defaults.MAX_MB)
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is no number") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"{name}: {text} is no bound")
    return int(number * (1 << 20))


def rings_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the files that NCCL's operations are written to, one a process (producers/rings)."""
    return Path(environment.get(FOLDER_VARIABLE) or spool_root(environment) / spool_defaults.RINGS)


def make_root(root: Path) -> None:
    """Create the folder of all spools if it is missing, writable for all users: jobs of any user may come first.

    Raises OSError, also for a link in its place that a user laid who decides nothing, and for what is no folder.
    """
    make_public_folder(root)
    if not real_folder(root).is_dir():
        raise FileExistsError(errno.EEXIST, "no folder is in its place", str(root))


def make_rings(environment: Mapping[str, str]) -> None:
    """Create the folder of the rings for a command that `drumline run` makes use it. Raises OSError."""
    if FOLDER_VARIABLE in environment:
        make_root(spool_root(environment))
        make_root(rings_folder(environment))


def control_file(environment: Mapping[str, str]) -> Path:
    """Return the file whose first line is the policy of all running processes of the host; it may be missing."""
    return spool_root(environment) / "policy"
