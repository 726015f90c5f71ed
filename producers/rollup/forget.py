"""Delete what this host keeps of a job: spools of its exited processes, and kept rows.

An agent may run meanwhile: it misses the files, and goes on. Its windows of the job go ten minutes after the last row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.rollup.folder import ROWS, name_of
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import BadSpool
from drumline.producers.spool.root import folders


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Names the folders of a job. `running`: spools whose process still writes; they stay. `bytes`: of the others."""

    spools: tuple[Path, ...]
    kept: tuple[Path, ...]
    running: tuple[Path, ...]
    bytes: int

    def delete(self) -> None:
        """Delete the folders, but those of running processes. Raises OSError."""
        for folder in (*self.spools, *self.kept):
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)


def files_of_job(root: Path, kept_folder: Path | None, host: str, job: str) -> HostFiles:
    """Return the folders of a job on this host. `root`: of the spools. Folders that cannot be read are none."""
    spools: list[Path] = []
    running: list[Path] = []
    with suppress(OSError):
        for folder in folders(root):
            if _job_of(folder) == job:
                with suppress(OSError, BadSpool):
                    (spools if folder.writer_exited() else running).append(folder.path)
    kept = () if kept_folder is None else tuple(_kept(kept_folder / name_of(host) / ROWS, job))
    return HostFiles(tuple(spools), kept, tuple(running), sum(_bytes(folder) for folder in (*spools, *kept)))


def _bytes(folder: Path) -> int:
    with suppress(OSError):  # an agent deletes files meanwhile
        return sum(file.lstat().st_size for file in folder.iterdir())
    return 0


def _kept(rows: Path, job: str) -> Iterator[Path]:
    with suppress(OSError), os.scandir(rows) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and _job_of(SpoolDirectory(Path(entry.path))) == job:
                yield Path(entry.path)


def _job_of(folder: SpoolDirectory) -> str | None:
    with suppress(OSError, BadSpool):
        return str(folder.identity().process.get("job", ""))
    return None
