"""Permission to sample a process: it is of the user whose records name it, and the agent may read that user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drumline.producers.host.targets import BOOT_TIMES, NotReadable, RecordedProcess, find_pid, start_ticks

PROC = Path("/proc")
#: Number of CAP_SYS_PTRACE (linux/capability.h).
CAP_SYS_PTRACE = 19


class Denied(PermissionError):
    """A process that must not be sampled, or may not be by the kernel; the message states what would allow it."""


class NoProcess(LookupError):
    """A process that has exited, or another one with its number."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A process of the operating system: its number is not another's as long as its start is the same.

    `inner`: the number that it has where it runs, another one in a container.
    """

    pid: int
    user: int
    start: int
    inner: int = 0

    @classmethod
    def of(cls, pid: int, inner: int = 0, proc: Path = PROC) -> Subject:
        """Return the process that has a number now. Raises NoProcess."""
        try:
            user = (proc / str(pid)).stat().st_uid
            return cls(pid, user, start_ticks(proc / str(pid)), inner or pid)
        except (OSError, IndexError, ValueError):
            raise NoProcess(f"no process {pid}") from None


def may_trace_all(proc: Path = PROC) -> bool:
    """Return whether this process has CAP_SYS_PTRACE."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return bool(mask >> CAP_SYS_PTRACE & 1)


def subject(process: RecordedProcess, agent_user: int, may_all: bool, proc: Path = PROC) -> Subject:
    """Return the process to sample. Raises NoProcess, Denied.

    The number comes from records that any user may write. So the process must be of the user who wrote them.
    """
    if agent_user not in (0, process.user) and not may_all:
        raise Denied(
            f"processes of user {process.user} are not sampled: the agent is user {agent_user}; run it as root, as "
            "that user, or with CAP_SYS_PTRACE"
        )
    try:
        pid = find_pid(process, proc, BOOT_TIMES.observed(), process.user)
    except (NotReadable, OSError, ValueError, IndexError, StopIteration) as error:
        raise NoProcess(str(error)) from None
    return Subject.of(pid, int(process.record.get("pid", 0)), proc)
