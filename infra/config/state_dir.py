"""The state directory of the local stack: where everything lies, its locks, and small files written atomically.

lock             held (flock) by the supervisor for as long as it lives: held = running
command.lock     held by `up`, `down` and whoever starts an engine: one at a time
engine.users     held shared by everybody who counts on the engine staying (`drumline sql`)
supervisor.json  pid of the supervisor;  plan.json  what it runs;  children.json  how that goes
logs/  secrets/ (0700)  kafka/  clickhouse/
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the supervisor stays small: it needs no settings
    from drumline.infra.config.settings import Settings


class StackError(Exception):
    """The local stack cannot do what was asked; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class State:
    """Paths below one state directory."""

    root: Path

    @classmethod
    def of(cls, settings: Settings) -> State:
        return cls(settings.local.state)

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def command_lock(self) -> Path:
        return self.root / "command.lock"

    @property
    def engine_users(self) -> Path:
        return self.root / "engine.users"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def children(self) -> Path:
        return self.root / "children.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    @property
    def clickhouse(self) -> Path:
        return self.root / "clickhouse"

    def create(self) -> None:
        """Make the folders. Raises StackError where that is not allowed."""
        try:
            for folder in (self.root, self.logs, self.kafka, self.clickhouse / "conf", self.clickhouse / "data"):
                folder.mkdir(parents=True, exist_ok=True)
            self.secrets.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"cannot use the state directory {self.root}: {error.strerror}; set DRUMLINE_LOCAL__STATE to a folder "
                "that you may write"
            ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace the file at once: a reader sees the old or the new content, whatever is killed when."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(value, indent=1))
    scratch.replace(path)


def read_json(path: Path) -> Any:
    """The file's content; None where it is missing or was not written by `write_json`."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def held(path: Path) -> bool:
    """Whether somebody holds the lock exclusively."""
    try:
        with path.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return True
        raise
    return False


@contextmanager
def locked(path: Path, busy: str, *, shared: bool = False, timeout_s: float = 120.0) -> Iterator[int]:
    """Hold the lock (exclusively unless `shared`); yields its file descriptor.

    The kernel releases it when this process ends in any way; child processes do not inherit it. Raises StackError
    with `busy` when it was not free within `timeout_s` (s).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as handle:
        acquire(handle.fileno(), busy, shared=shared, timeout_s=timeout_s)
        yield handle.fileno()


def acquire(descriptor: int, busy: str, *, shared: bool = False, timeout_s: float = 120.0) -> None:
    """flock an open file, or change the lock held on it. Polls, so that Ctrl-C and the time limit work."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StackError(busy) from None
            time.sleep(0.05)
