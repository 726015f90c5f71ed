"""The state directory of the local stack: its paths, its locks, and small files that are replaced atomically.

lock             held (flock) by the supervisor while it runs: held = running
command.lock     held exclusively by `up`, `down` and any command that starts an engine
engine.users     held shared by commands that need the engine to stay up (`drumline sql`)
supervisor.json  pid of the supervisor;  plan.json  its programs;  children.json  their state
programs/        the same of drumline's own programs
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
    """The local stack cannot execute the command; the message contains a remedy."""


@dataclass(frozen=True, slots=True)
class State:
    """Paths below one state directory of a local stack."""

    root: Path

    @classmethod
    def of(cls, settings: Settings) -> State:
        """Return the paths of the configured state directory."""
        return cls(settings.local.state)

    @property
    def lock(self) -> Path:
        """File that the supervisor locks while it runs."""
        return self.root / "lock"

    @property
    def command_lock(self) -> Path:
        """File that `up` and `down` lock while they change the stack."""
        return self.root / "command.lock"

    @property
    def engine_users(self) -> Path:
        """File that processes lock, shared, while they use an engine without a supervisor."""
        return self.root / "engine.users"

    @property
    def supervisor(self) -> Path:
        """File of the supervisor's process entry."""
        return self.root / "supervisor.json"

    @property
    def plan(self) -> Path:
        """File of the children that the supervisor starts, and their addresses."""
        return self.root / "plan.json"

    @property
    def children(self) -> Path:
        """File of the state of the children, written by the supervisor."""
        return self.root / "children.json"

    @property
    def programs(self) -> State:
        """Plan and state of drumline's own programs, which a child of the supervisor runs as it runs the servers."""
        return State(self.root / "programs")

    @property
    def logs(self) -> Path:
        """Folder of log files."""
        return self.root / "logs"

    @property
    def secrets(self) -> Path:
        """Folder of passwords and keys."""
        return self.root / "secrets"

    @property
    def kafka(self) -> Path:
        """Folder of Kafka's data."""
        return self.root / "kafka"

    @property
    def clickhouse(self) -> Path:
        """Folder of ClickHouse's configuration and data."""
        return self.root / "clickhouse"

    def create(self) -> None:
        """Create the folders. Raises StackError where that is not allowed."""
        try:
            for folder in (
                self.root,
                self.logs,
                self.kafka,
                *(self.clickhouse / name for name in ("conf", "data", "backups")),
            ):
                folder.mkdir(parents=True, exist_ok=True)
            self.secrets.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"cannot use the state directory {self.root}: {error.strerror}; set DRUMLINE_LOCAL__STATE to a folder "
                "that you may write"
            ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace the file atomically: a reader sees the old or the new content, also after a kill. Raises OSError."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        scratch.write_text(json.dumps(value, indent=1))
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Return the file's content; None where it is missing or is not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def held(path: Path) -> bool:
    """Return whether a process holds the lock exclusively."""
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
    """Hold the lock, exclusively unless `shared`, and yield its file descriptor.

    The kernel releases it when this process ends in any way; child processes do not inherit it. Blocks for up to
    `timeout_s` (s).

    Raises:
        StackError: the lock was not free in time; its message is `busy`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as handle:
        acquire(handle.fileno(), busy, shared=shared, timeout_s=timeout_s)
        yield handle.fileno()


def acquire(descriptor: int, busy: str, *, shared: bool = False, timeout_s: float = 120.0) -> None:
    """Lock an open file (flock), or change the lock held on it. Polls, so that Ctrl-C and the timeout work.

    Raises:
        StackError: another process has the lock for `timeout_s`; the message is `busy`.
    """
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
