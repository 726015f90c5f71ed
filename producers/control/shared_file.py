"""The file of requests in the spool's root, as the agent writes it: by descriptors, whatever users lay there.

A new text is written in the agent's folder, where nobody else may write, and moved from there into its place. A renewal
is of the file that this agent has written, never of the one that has its name. Where a user's file has the name and may
not be replaced, as in a sticky folder, the agent's gets another name, which readers look for then.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from drumline.producers.ipc.control import FILE
from drumline.producers.spool.files import PASSED, agent_folder, opened


class ControlFile:
    """Writes, renews and removes the file. One thread's. Methods access the disk and raise OSError."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self._root, self._text, self._descriptor, self._name = root, "", -1, FILE

    def write(self, text: str) -> None:
        """Let the file have a text, and the time of now."""
        with opened(self._root, PASSED) as root:
            if text == self._text and self._is_in_place(root):
                os.utime(self._descriptor)
                return
            self._close()
            with agent_folder(self._root) as folder:
                with suppress(FileNotFoundError):
                    os.unlink(FILE, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(FILE, flags, 0o644, dir_fd=folder)
                try:
                    os.fchmod(self._descriptor, 0o644)  # jobs of all users read it
                    with open(self._descriptor, "w", closefd=False) as file:
                        file.write(text)
                    self._move(folder, root)
                except OSError:
                    self._close()
                    raise
            self._text = text

    def remove(self) -> None:
        """Remove the file, if it is there."""
        self._close()
        with suppress(FileNotFoundError), opened(self._root, PASSED) as root:
            self._leave_name(root)
            if not _is_foreign(root):
                os.unlink(FILE, dir_fd=root)

    def _is_in_place(self, root: int) -> bool:
        if self._descriptor < 0:
            return False
        try:
            in_place, written = os.stat(self._name, dir_fd=root, follow_symlinks=False), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (in_place.st_dev, in_place.st_ino) == (written.st_dev, written.st_ino)

    def _move(self, folder: int, root: int) -> None:
        """Move the new file into its place; a folder there is a user's, and moved aside."""
        self._leave_name(root)
        try:
            os.rename(FILE, FILE, src_dir_fd=folder, dst_dir_fd=root)
        except IsADirectoryError:
            os.rename(FILE, f"{FILE}.{secrets.token_hex(4)}", src_dir_fd=root, dst_dir_fd=root)
            os.rename(FILE, FILE, src_dir_fd=folder, dst_dir_fd=root)
        except PermissionError:
            if not _is_foreign(root):
                raise
            name = f"{FILE}.{secrets.token_hex(4)}"  # no user knows it before
            os.rename(FILE, name, src_dir_fd=folder, dst_dir_fd=root)
            self._name = name

    def _leave_name(self, root: int) -> None:
        """Remove the file that has another name."""
        name, self._name = self._name, FILE
        if name != FILE:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=root)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._text, self._descriptor = "", -1


def _is_foreign(root: int) -> bool:
    """Return whether the file in the place is of a user who decides nothing, and may not be moved."""
    about, above = os.stat(FILE, dir_fd=root, follow_symlinks=False), os.stat(root)
    return os.geteuid() not in (0, about.st_uid, above.st_uid) and about.st_uid != 0
