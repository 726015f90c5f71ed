"""The supervisor: a detached process that runs the children of a plan and restarts them.

`python -m drumline.infra.localstack.supervisor STATE [at-once]` reads STATE/plan.json, a list of children (see
`Child`). It holds STATE/lock while it lives. SIGTERM or SIGINT stops the children in reverse order and ends it.
A child with `stop = "stdin"` reads a pipe of the supervisor, so it ends with the supervisor, also after kill -9. Other
children become orphans then, which `up` and `down` find and stop.
A full disk ends nothing here: what cannot be written is left out, and children start when their disk lets them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from drumline.infra.config.state_dir import StackError, State, locked, read_json, write_json
from drumline.infra.runtime.log_stream import LogStream

SUPERVISOR = "drumline.infra.localstack.supervisor"
#: Argument by which all children are asked to end before the first is waited for.
AT_ONCE = "at-once"
#: Fields of a child that its plan has; the others are its state.
PLANNED = ("name", "argv", "cwd", "log", "stop", "stop_s", "environment")
FIRST_DELAY_S = 0.2
LAST_DELAY_S = 15.0
#: A child that ran this long was healthy: the next restart has the shortest delay.
HEALTHY_AFTER_S = 20.0
LOG_LIMIT_BYTES = 8_000_000


@dataclass(slots=True)
class Child:
    """Runs one program of the plan; used by the supervisor's main loop, and for a temporary engine.

    stop: signal to end: the end of its stdin, or SIGTERM; SIGKILL follows after `stop_s`.
    environment: all variables; None = those of this process.
    Times are in s, on the monotonic clock.
    """

    name: str
    argv: list[str]
    cwd: str
    log: str
    stop: Literal["stdin", "term"]
    stop_s: float
    environment: dict[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    last_exit: int | None = None
    started: float = 0.0
    delay: float = FIRST_DELAY_S
    due: float = 0.0
    is_ending: bool = False

    def planned(self) -> dict[str, Any]:
        """Return what a plan has of the program."""
        return {name: value for name, value in asdict(self).items() if name in PLANNED}

    def start(self, now: float) -> None:
        """Start the program; a failure to start counts as an exit."""
        self.started, self.is_ending = now, False
        try:
            with open_log(Path(self.log)) as log:
                self.process = subprocess.Popen(
                    self.argv,
                    cwd=self.cwd,
                    env=self.environment,
                    stdin=subprocess.PIPE if self.stop == "stdin" else subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.schedule_restart(now, str(error))

    def schedule_restart(self, now: float, how: str) -> None:
        """Record an exit and compute when to restart."""
        self.delay = FIRST_DELAY_S if now - self.started >= HEALTHY_AFTER_S else min(self.delay * 2, LAST_DELAY_S)
        self.process, self.due = None, now + self.delay
        log_line(f"{self.name} ended with {how}; restarting it in {self.delay:.1f} s")

    def check(self, now: float) -> bool:
        """Record an exit, and restart when due. Return whether the state changed."""
        if self.process is None:
            if now < self.due:
                return False
            self.restarts += 1
            self.start(now)
            return True
        code = self.process.poll()
        if code is None:
            return False
        close_stdin(self.process)
        self.last_exit = code
        self.schedule_restart(now, f"exit code {code}")
        return True

    def request_end(self) -> None:
        """Ask the program to end, once, and return at once: a second signal ends drumline's programs in their work."""
        if self.process is not None and not self.is_ending:
            self.is_ending = True
            close_stdin(self.process)
            if self.stop == "term":
                self.process.terminate()

    def end(self) -> None:
        """Stop the program: request it, wait for up to `stop_s`, kill."""
        if self.process is None:
            return
        self.request_end()
        try:
            self.last_exit = self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            log_line(f"{self.name} did not stop within {self.stop_s:.0f} s and is killed")
            self.process.kill()
            self.last_exit = self.process.wait()
        self.process = None

    def report(self) -> dict[str, Any]:
        """Return the state for children.json."""
        return {
            "pid": self.process.pid if self.process else None,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
        }


LOG = LogStream()


def log_line(text: str) -> None:
    """Write a line with the time to stderr, the supervisor's log."""
    LOG.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")


def replace_json(path: Path, value: Any) -> bool:
    """Replace the file atomically; return False where that fails, as on a full disk."""
    try:
        write_json(path, value)
    except OSError:
        return False
    return True


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe to the process, if it has one."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending; one beyond the limit becomes PATH.1."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def supervise(state: State, *, at_once: bool = False) -> int:
    """Run until a signal, and return it. Signals end the wait at once, also the exit of a child (SIGCHLD).

    `at_once`: all children are asked to end before the first is waited for.
    """
    stopping: list[int] = []
    wake, wakened = os.pipe()
    for end in (wake, wakened):
        os.set_blocking(end, False)
    # Not pthread_sigmask and sigtimedwait: a blocked SIGTERM would be blocked in the children too.
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda signum, frame: stopping.append(signum))
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    replace_json(state.supervisor, {"pid": os.getpid()})
    children = [Child(**entry) for entry in read_json(state.plan)["children"]]
    try:
        for child in children:
            child.start(time.monotonic())
        is_current = replace_json(state.children, {child.name: child.report() for child in children})
        while not stopping:
            select.select([wake], [], [], 0.5)
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            changed = [child.check(time.monotonic()) for child in children]
            if any(changed) or not is_current:
                is_current = replace_json(state.children, {child.name: child.report() for child in children})
        log_line(f"stopping on {signal.Signals(stopping[0]).name}")
    finally:
        for child in children if at_once else ():
            child.request_end()
        for child in reversed(children):
            child.end()
        replace_json(state.children, {child.name: child.report() for child in children})
    return stopping[0]


def main() -> int:
    """Run the supervisor of the state directory in argv; return its exit code."""
    state = State(Path(sys.argv[1]))
    try:
        # A check whether the supervisor runs (`held`) has the lock for a moment too.
        with locked(state.lock, f"another supervisor runs in {state.root}", timeout_s=2):
            return 130 if supervise(state, at_once=AT_ONCE in sys.argv[2:]) == signal.SIGINT else 0
    except StackError as error:
        log_line(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
