"""Mirrors what is asked of this host's processes into a file in the spool's root, once a second: its lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import structlog

from drumline.infra.config.settings import Settings
from drumline.producers.control.control_follower import ControlFollower
from drumline.producers.control.requests_in_force import as_file
from drumline.producers.control.shared_file import ControlFile
from drumline.producers.identity import host_name
from drumline.schemas.codec import Codec
from drumline.schemas.control import PULL, TIMES, WINDOW, Control

log = structlog.get_logger()

#: Period of the file; s. Processes take one that is younger than 4 s (LEASE_NS).
RENEW_S = 1.0


class ControlMirror(threading.Thread):
    """A thread of the agent, which calls `start` and `stop`; then the file is removed, and what was asked ends.

    `jobs`: returns the names of the jobs that have a process here. `began`: called once with each deep window and pull,
    in this thread. `host`: its configured name.
    """

    def __init__(
        self,
        root: Path,
        follower: ControlFollower,
        jobs: Callable[[], Collection[str]],
        began: Callable[[Control], None] = lambda window: None,
        host: str = "",
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._file, self._follower, self._jobs, self._began = ControlFile(root), follower, jobs, began
        self._host, self._halt, self._renew_at = host_name(host), threading.Event(), float("-inf")
        self._problem = ""
        self._windows: set[tuple[str, str, str]] = set()

    def stop(self) -> None:
        """Stop the thread."""
        self._halt.set()
        self.join(3.0)

    def run(self) -> None:
        """Follow until `stop`."""
        try:
            while not self._halt.is_set():
                left_s = self._renew_at - time.monotonic() if self._follower.is_complete else RENEW_S
                came = self._follower.poll(min(RENEW_S, max(left_s, 0.0)))
                if self._follower.is_complete and (came or time.monotonic() >= self._renew_at):
                    self.renew(time.time_ns())
        except Exception as error:  # the agent publishes without it
            log.error("drumline policy and capture do not reach this host", error=f"{type(error).__name__}: {error}")
        finally:
            with suppress(OSError):
                self._file.remove()
            self._follower.close()

    def renew(self, now_ns: int) -> None:
        """Write the file, or renew it; without anything that is asked there is none."""
        self._renew_at = time.monotonic() + RENEW_S
        requests = self._follower.requests.concerning_host(self._host, self._jobs(), now_ns)
        once = [control for control in requests if control.kind in (WINDOW, PULL)]
        windows = {(control.job, control.run, control.key): control for control in once}
        for key in windows.keys() - self._windows:
            self._began(windows[key])
        self._windows = set(windows)
        text, left_out = as_file(requests)
        try:
            if text == as_file(())[0]:
                self._file.remove()
            else:
                self._file.write(text)
            problem = f"{left_out} requests are left out: there are too many at once" if left_out else ""
        except OSError as error:
            problem = f"{self._file.path}: {error.strerror}"
        if problem and problem != self._problem:
            log.warning("drumline policy and capture do not reach this host", problem=problem)
        self._problem = problem


def control_mirror(
    settings: Settings,
    codec: Codec,
    jobs: Callable[[], Collection[str]],
    began: Callable[[Control], None],
    kept_jobs: Callable[[], Collection[str]] = tuple,
    jobs_in_part: Callable[[], Collection[str]] = tuple,
) -> ControlMirror:
    """Return the mirror of this host; `jobs`, `began`: as of ControlMirror. `codec`: of no other thread.

    `kept_jobs`: returns the names of the jobs whose rows are kept here, for which verdicts ask. `jobs_in_part`:
    of those of which NCCL measures a part of the steps.
    """
    verdicts = {TIMES: jobs_in_part}
    verdicts |= {WINDOW: jobs} if settings.agent.on_verdict == "record" else {}
    verdicts |= {PULL: kept_jobs} if settings.agent.on_verdict != "nothing" else {}
    follower = ControlFollower(settings, codec, jobs, verdicts=verdicts)
    return ControlMirror(settings.spool.root, follower, jobs, began, settings.host)
