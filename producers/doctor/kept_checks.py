"""Check of the folder of rows that stay on a host (policy rollup), for `drumline doctor`."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from drumline.producers.doctor.checks import FAIL, OK, WARN, Check
from drumline.producers.rollup.folder import ROWS, name_of
from drumline.producers.spool.folder_layout import AGENT_FOLDER

SETTING = "DRUMLINE_AGENT__KEPT_FOLDER"


def kept_rows(folder: Path, host: str, most_bytes: int, root: Path) -> Check:
    """Check that the agent can use the folder, that no other user can spoil it, and that it has room on a disk.

    `root`: of the spool, whose agent's folder names the agent's user. Nothing is created.
    """
    agent = _agent_user(root)
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    for path in (folder, folder / name_of(host)):
        if reason := _unsafe(path, agent):
            fix = f"name another folder in {SETTING}, or as root: chown {agent} {path}; chmod 700 {path}"
            return Check("kept rows", FAIL, f"{path} {reason}", fix)
    if not (folder / name_of(host)).is_dir() and not _may_write(existing, agent):
        fix = f"as root: mkdir -p -m 700 {folder}; chown {agent} {folder}"
        return Check("kept rows", FAIL, f"user {agent}, the agent's, may not write in {existing}", fix)
    disk = os.statvfs(existing)
    kept, free = _bytes_in(folder / name_of(host) / ROWS), disk.f_bavail * disk.f_frsize
    text = f"{folder}: {kept / 1e6:.0f} of at most {most_bytes / 1e6:.0f} MB"
    if root.is_dir() and existing.stat().st_dev == root.stat().st_dev:
        fix = f"a folder on a disk in {SETTING}: there they take the room of running jobs"
        return Check("kept rows", WARN, f"{text}, on the spool's file system", fix)
    if disk.f_blocks and free < most_bytes - kept:
        fix = "free some space, or lower DRUMLINE_AGENT__KEPT_MB: on a full disk rows are not kept"
        return Check("kept rows", WARN, f"{text}, and only {free / 1e6:.0f} MB are free", fix)
    return Check("kept rows", OK, text)


def _agent_user(root: Path) -> int:
    """Return the user of the agent that served the spool; before the first start this process's."""
    try:
        return (root / AGENT_FOLDER).lstat().st_uid
    except OSError:
        return os.geteuid()


def _unsafe(path: Path, agent: int) -> str:
    """Return why the agent refuses an existing folder, or ""."""
    try:
        about = path.lstat()
    except OSError:  # not there yet, or below a folder of the agent's alone
        return ""
    if not stat.S_ISDIR(about.st_mode):
        return "is a link or a file"
    if about.st_uid not in (0, agent):
        return f"belongs to user {about.st_uid}, and the agent is user {agent}"
    return "may be written by others than its owner" if about.st_mode & 0o022 else ""


def _may_write(path: Path, agent: int) -> bool:
    """Return whether the agent may create folders there; of another user's groups nothing is known."""
    if agent == os.geteuid():
        return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    about = path.stat()
    granted = about.st_mode & (0o200 if about.st_uid == agent else 0o022)
    return stat.S_ISDIR(about.st_mode) and (agent == 0 or granted != 0)


def _bytes_in(folder: Path) -> int:
    """Return the size of all files below, as far as they may be seen."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted since
                total += os.lstat(os.path.join(above, name)).st_size
    return total
