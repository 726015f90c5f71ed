"""Follows pulls, of `drumline pull` and of verdicts: publishes what is kept of their steps, and states the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import structlog

from drumline.producers.rollup.kept_segments import KeptSegments
from drumline.producers.rollup.pull import Pulled, is_pulling, pull, remove_unfinished
from drumline.producers.spool.folder_layout import BadSpool
from drumline.schemas.control import Control
from drumline.schemas.errors import BadRecord

log = structlog.get_logger()

#: Period of a look for segments that have come since; s. The newest rows are kept when their segment is closed.
PERIOD_S = 1.0


@dataclass(slots=True)
class _Request:
    """A pull that is followed. `seen`: newest segment at the last poll, by process. `done`: processes without more."""

    control: Control
    seen: dict[str, int] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    rows: dict[str, int] = field(default_factory=dict)


class Puller(threading.Thread):
    """A thread of the agent, which calls `start`, `add` and `stop`.

    `answer(name, text)`: states what became of a pull on a rank. `host`: its configured name.
    """

    def __init__(
        self,
        segments: KeptSegments,
        root: Path,
        host: str,
        answer: Callable[[str, str], None],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(name="pull", daemon=True)
        self._segments, self._root, self._host = segments, root, host
        self._answer, self._clock = answer, clock
        self._halt, self._lock = threading.Event(), threading.Lock()
        self._requests: dict[tuple[str, str, str], _Request] = {}
        remove_unfinished(root)

    def add(self, control: Control) -> None:
        """Follow a pull until its steps are complete, or it ends. Any thread."""
        with self._lock:
            self._requests[control.job, control.run, control.key] = _Request(control)

    def stop(self) -> None:
        """Stop the thread."""
        self._halt.set()
        self.join(3.0)

    def run(self) -> None:
        """Follow until `stop`."""
        while not self._halt.wait(PERIOD_S):
            try:
                self.follow()
            except Exception as error:  # windows and all else go on without it
                log.error("a pull failed", error=f"{type(error).__name__}: {error}")

    def follow(self) -> None:
        """Pull what has come of all requests."""
        with self._lock:
            requests = list(self._requests.items())
        for key, request in requests:
            is_over = self._clock() >= request.control.until_ns
            for process in self._segments.processes():
                if process not in request.done and not self._halt.is_set():
                    self._guarded_poll(request, process, is_over)
            if is_over:
                with self._lock:
                    self._requests.pop(key, None)

    def _guarded_poll(self, request: _Request, process: str, is_over: bool) -> None:
        """Run one poll. Bad data in the folder of a process ends the pull of that process, and of no other."""
        try:
            self._poll(request, process, is_over)
        except Exception as error:
            request.done.add(process)
            reason = f"{type(error).__name__}: {error}"
            log.error("a pull failed", key=request.control.key, process=process, error=reason)
            self._answer(f"{request.control.key} {process}", f"rejected: {reason}")

    def _poll(self, request: _Request, process: str, is_over: bool) -> None:
        control = request.control
        try:
            place = self._segments.identity(process).process
        except (OSError, BadSpool):  # deleted since
            return
        if not (
            fnmatchcase(str(place.get("job", "")), control.job)
            and control.run in ("", place.get("run", ""))
            and fnmatchcase(self._host, control.host)
            and (not control.ranks or place.get("rank", -1) in control.ranks)
        ):
            request.done.add(process)
            return
        if is_pulling(self._root, process):
            return  # the agent publishes what was found before
        newest = max((segment.number for segment in self._segments.segments(process)), default=-1)
        has_exited = not (self._root / process).is_dir()
        if newest == request.seen.get(process, -1) and not (is_over or has_exited):
            return
        name = f"{control.key} rank {place.get('rank', -1)}"
        try:
            result = pull(self._segments, self._root, process, control.first_step, control.last_step)
        except (OSError, BadSpool, BadRecord) as error:
            self._answer(name, f"rejected: {error}")
            return
        if not result.is_cut:
            request.seen[process] = newest
        request.rows[process] = request.rows.get(process, 0) + result.rows
        is_done = (not result.is_cut and (result.is_complete or has_exited)) or is_over
        if is_done:
            request.done.add(process)
        rows = request.rows[process]
        text = described(result, control.first_step, control.last_step, rows)
        self._answer(name, f"{'done' if is_done else 'running'}: {text}")
        log.info("pull", name=name, result=text, is_done=is_done)


def described(result: Pulled, first: int, last: int, rows: int) -> str:
    """Return what became of a pull of steps `first` to `last`, for people. `rows`: published for it."""
    missing = [step for step in range(first, last + 1) if step not in result.steps]
    parts = [f"steps {min(result.steps)} to {max(result.steps)}, {rows:,} rows"] if result.steps else ["no steps"]
    before = result.before + result.rows - rows
    if before > 0:
        parts.append(f"{before:,} rows were published before")
    if missing:
        parts.append(f"steps {missing[0]} to {missing[-1]} are not kept ({len(missing)} of them)")
        parts.append(f"kept are {result.kept[0]} to {result.kept[1]}" if result.kept else "no step is kept")
    return "; ".join(parts)
