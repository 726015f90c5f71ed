"""The folder of rows that stay on a host: the agent's alone, addressed by its descriptor from the moment it is opened.

<DRUMLINE_AGENT__KEPT_FOLDER>/<host>/lock         held (flock) while its agent runs
                                     windows.db   state of open windows
                                     rows/        kept segments (kept_segments.py)
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from drumline.producers.spool.files import open_file, owned_folder

#: Names in the folder of a host.
FOLDER_LOCK, ROWS = "lock", "rows"


class KeptFolder:
    """Opens the folder of one host, and locks it until `close`. Hosts may share the folder above.

    `path`: by which its files are reached, whatever lies at its name by now.
    """

    def __init__(self, folder: Path, host: str) -> None:
        """Create what is missing. Raises OSError: not to be used, or another agent uses it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        above = _opened(str(folder), None)
        try:
            self._descriptor = _create(name_of(host), above)
        finally:
            os.close(above)
        self._lock = -1
        try:
            self._lock = open_file(FOLDER_LOCK, os.O_RDWR | os.O_CREAT, self._descriptor)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(_create(ROWS, self._descriptor))
        except BlockingIOError:
            self.close()
            raise OSError(errno.EBUSY, "another agent keeps rows there", str(folder)) from None
        except OSError:
            self.close()
            raise
        self.path = Path(f"/proc/self/fd/{self._descriptor}")

    def close(self) -> None:
        """Release the lock."""
        for descriptor in (self._lock, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._descriptor = -1


def name_of(host: str) -> str:
    """Return the name of a host's folder."""
    return quote(host, safe="")[:200].replace(".", "%2E") or "host"


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that no other user may read, at once. Raises OSError."""
    scratch = path.with_name(f"{path.name}.part")
    with open(scratch, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    scratch.replace(path)


def _create(name: str, above: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    return _opened(name, above)


def _opened(name: str, above: int | None) -> int:
    """Return the descriptor of a folder that only root and the agent's user may write into. Raises OSError."""
    unsafe = OSError(errno.EPERM, "is a link, another user's, or others may write there", name)
    return owned_folder(name, above, unsafe)
