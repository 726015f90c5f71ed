"""Opens folders and files of a spool, so that nothing is followed which a user has laid in their place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drumline.producers.ipc.plain_file import NotPlainFile, open_plain
from drumline.producers.spool.folder_layout import AGENT_FOLDER, BadSpool

#: Flags of a folder that is listed, and of one whose files alone are opened.
LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PASSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(name: str | Path, flags: int = LISTED, directory: int | None = None) -> Iterator[int]:
    """Open a folder, and yield its descriptor. Raises OSError, also for a link.

    `directory`: descriptor of the folder that `name` lies in.
    """
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(
    name: str | Path, access: int = os.O_RDONLY, directory: int | None = None, *, any_owner: bool = False
) -> int:
    """Open a plain file and return its descriptor. Raises OSError, and BadSpool for anything else.

    Any user may write into a spool, and the agent may be allowed to read more than that user. So a file in `directory`
    must belong to its owner: a hard link may be another user's. `any_owner`: the folder is for files of all users.
    """
    try:
        descriptor = open_plain(name, access, directory)
    except NotPlainFile as error:
        raise BadSpool(str(error)) from None
    if directory is not None and not any_owner and os.fstat(descriptor).st_uid != os.fstat(directory).st_uid:
        os.close(descriptor)
        raise BadSpool(f"{Path(name).name} belongs to another user than its folder")
    return descriptor


@contextmanager
def agent_folder(root: Path) -> Iterator[int]:
    """Create the agent's folder if need be, and yield its descriptor.

    All users may write into the spool's root, and the agent may write where others may not. So a folder that
    another user can have filled with links is not used. Raises OSError.
    """
    with opened(root, PASSED) as descriptor:
        with suppress(FileExistsError):
            os.mkdir(AGENT_FOLDER, 0o700, dir_fd=descriptor)  # never the root: it is for all users
        unsafe = OSError(errno.EPERM, f"{AGENT_FOLDER} is a link, another user's, or others may write there: remove it")
        folder = owned_folder(AGENT_FOLDER, descriptor, unsafe)
    try:
        yield folder
    finally:
        os.close(folder)


def owned_folder(name: str, above: int | None, unsafe: OSError) -> int:
    """Return the descriptor of a folder that only root and the agent's user may write into.

    `above`: descriptor of the folder it is in. Raises `unsafe` for any other, and OSError.
    """
    try:
        folder = os.open(name, LISTED, dir_fd=above)
    except NotADirectoryError:
        raise unsafe from None
    about = os.fstat(folder)
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
        os.close(folder)
        raise unsafe
    return folder
