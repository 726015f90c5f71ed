"""Opens files and creates folders in places where any user may write: no link is followed, and owners decide.

A link is not followed, and what is no plain file is refused. A file that decides what is recorded counts only if it
belongs to root, to this process's user or to the agent's, and if nobody else may write it. The kernel's
fs.protected_symlinks keeps other users' links from being followed in sticky folders; nothing here depends on it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

#: Names the agent's user, or has its number, where it is neither root nor this process's.
AGENT_USER = "DRUMLINE_SPOOL__AGENT_USER"


class NotPlainFile(OSError):
    """A folder, a FIFO or a device in the place of a file."""


class NotTrusted(OSError):
    """A file that does not count, as a user may have laid it who decides nothing; the message states why."""


def open_plain(name: str | Path, access: int = os.O_RDONLY, directory: int | None = None) -> int:
    """Open a plain file and return its descriptor; never waits. Raises OSError, also for a link.

    `directory`: descriptor of the folder that `name` lies in.
    """
    descriptor = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o660, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(f"{name} is no plain file")
    return descriptor


def open_trusted(path: Path) -> int:
    """Open a file that decides for others and return its descriptor. Raises NotTrusted, and OSError.

    Its status is looked at before too: a file that may not be read is refused by its owner, not by its rights.
    """
    _require_trusted(path, os.lstat(path))
    descriptor = open_plain(path)
    try:
        _require_trusted(path, os.fstat(descriptor))
    except NotTrusted:
        os.close(descriptor)
        raise
    return descriptor


def untrusted(*paths: Path) -> str:
    """Return why the first of files that do not count does not, "" if all that are there do."""
    for path in paths:
        try:
            _require_trusted(path, os.lstat(path))
        except NotTrusted as error:
            return str(error)
        except OSError:
            continue
    return ""


def real_folder(path: Path) -> Path:
    """Return a folder's path without links. Raises OSError for a link that a user laid who decides nothing."""
    about = os.lstat(path)
    if not stat.S_ISLNK(about.st_mode):
        return path.parent.resolve() / path.name  # not the last part: a link may be there by now
    if about.st_uid not in _trusted_users():
        raise OSError(errno.ELOOP, f"is a link of user {about.st_uid}: remove it", str(path))
    return path.resolve()


def make_public_folder(path: str | Path) -> None:
    """Create a folder if it is missing, writable for all users whatever the umask: jobs of any user may come first.

    Only a folder created here is opened to all, by its descriptor: a link may be in its place by then. Raises OSError.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.mkdir(path)
    except FileExistsError:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if about.st_uid == os.geteuid():
            os.fchmod(descriptor, 0o1777 | about.st_mode & stat.S_ISGID)  # the group that a folder above hands down
    finally:
        os.close(descriptor)


def _require_trusted(path: Path, about: os.stat_result) -> None:
    """Raise NotTrusted for what no trusted user alone may have written."""
    if not stat.S_ISREG(about.st_mode):
        kind = "is a link" if stat.S_ISLNK(about.st_mode) else "is no plain file"
        raise NotTrusted(f"{path} does not count: it {kind}")
    if about.st_uid not in _trusted_users():
        raise NotTrusted(
            f"{path} does not count: it belongs to user {about.st_uid}, who is neither root nor {AGENT_USER} "
            "(in a container without that user give its number)"
        )
    if about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _is_private(about)):
        raise NotTrusted(f"{path} does not count: others may write it: chmod go-w")


def _trusted_users() -> set[int]:
    return {0, os.geteuid()} | _user(os.environ.get(AGENT_USER, ""))


def _is_private(about: os.stat_result) -> bool:
    """Return whether the group of a file is its owner's alone: with umask 002, which needs that, it may write."""
    with suppress(ImportError, KeyError, OSError):
        import grp
        import pwd

        owner, group = pwd.getpwuid(about.st_uid), grp.getgrgid(about.st_gid)
        return owner.pw_gid == group.gr_gid and group.gr_name == owner.pw_name and not {*group.gr_mem} - {owner.pw_name}
    return False


def _user(name: str) -> set[int]:
    """Return the number of a user, none if there is no such user."""
    if name.isdecimal():
        return {int(name)}
    with suppress(ImportError, KeyError, OSError):
        import pwd  # not on every system, and not needed by most jobs

        return {pwd.getpwnam(name).pw_uid} if name else set()
    return set()
