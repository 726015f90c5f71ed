"""Progress of reading files, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from drumline.infra.runtime.terminal import terminal_console


@contextmanager
def files_progress(paths: Iterable[Path], quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how much of the files has been read; yields what takes the bytes of each read."""
    total = sum(_size(path) for path in paths)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = terminal_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("reading", total=total or None)
        yield lambda size: progress.advance(task, size)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of a folder's files; 0 where there are none."""
    try:
        files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
