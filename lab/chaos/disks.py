"""Disks of a private stack that are full for a while: a tmpfs in place of each folder, which root only can mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State
from drumline.infra.localstack.kafka.broker import broker_folder, broker_name, numbers
from drumline.lab.chaos.spans import Disturbance

#: Bytes of a disk that is not full; only what is written takes memory.
SIZE = 3 << 30
#: How long a disk is full: the supervisor waits up to 15 s more with the next start of a broker or an engine; s.
SHORTEST_S, LONGEST_S = 3.0, 15.0
#: Part whose disk has the logs of all programs.
LOGS = "logs"
#: Time for a disk that is written to to become full; s.
FILL_S = 10.0


def unmountable() -> str:
    """Return why no disk can be full here, "" if one can."""
    if os.geteuid():
        return "a full disk is a file system that root only can mount: run as root"
    return "" if shutil.which("mount") else "a full disk is a file system that `mount` makes, and there is none here"


def folders(settings: Settings) -> dict[str, Path]:
    """Return part -> folder with its data; a folder stands behind the one that it lies in."""
    state = State.of(settings)
    brokers = {broker_name(number): broker_folder(state, number) for number in numbers(settings)}
    return {**brokers, "engine": state.clickhouse, LOGS: state.logs}


@contextmanager
def mounted(settings: Settings, parts: Iterable[str]) -> Iterator[None]:
    """Give each of the parts a disk inside the block; what they have then lies in the folders. Raises StackError."""
    wanted = set(parts)
    with ExitStack() as disks:
        for part, folder in folders(settings).items():
            if part in wanted:
                disks.enter_context(_disk(folder))
        yield


def full(folder: Path) -> Disturbance:
    """Return the state in which the disk of a folder has no free block."""
    return Disturbance(folder, lambda: _fill(folder), lambda: _resize(folder, SIZE))


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))
    try:
        yield
    finally:
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True)
        subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)
        folder.rmdir()
        kept.rename(folder)


def _fill(folder: Path) -> None:
    """Take all free blocks, also those that are freed meanwhile. Raises StackError."""
    until = time.monotonic() + FILL_S
    while True:
        disk = os.statvfs(folder)
        try:
            _resize(folder, (disk.f_blocks - disk.f_bfree) * disk.f_frsize)
        except StackError:  # it is written to
            if time.monotonic() > until:
                raise
        else:
            return


def _resize(folder: Path, size: int) -> None:
    _mount("-o", f"remount,size={size}", str(folder))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"no disk can be made full here: {done.stderr.strip()}")
