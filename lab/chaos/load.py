"""Keeps the system under load: one replay of a recording after the other.

Replays are suspended while sink or worker are far behind. So neither disk nor lag grows without bound, and a killed
program always has work.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.lab.chaos.progress import ProgressSnapshot
from drumline.producers.spool.folder_layout import IDENTITY

#: Lag of sink or worker in records, or bytes in the spool that the agent could delete, at which the replay is
#: suspended; and the share of that at which it resumes. A record has about 700 rows on average.
HIGH, SPOOLED, LOW = 800, 4 << 20, 0.4
#: Period in which a suspended replay resumes for one tick, s: the worker evaluates a job that is silent for longer than
#: `idle_s` without the rows that it will still publish.
RESUME_S = 4.0
JOB = "chaos"
#: In the log of a replay that began while the broker was away, or lost it before the first batch (BrokerUnreachable).
#: It has published nothing, prints no summary, and the next one begins.
UNREACHABLE = re.compile(rb"no Kafka broker answers|Kafka at \S+ failed:")


@dataclass
class ReplayLoad:
    """Runs replays as child processes; `tick`, called by the run's only thread, drives it and does not block.

    loops: repetitions of the recording in each replay.
    spool: folder where replays leave their batches for an agent; None: they publish to Kafka.
    runs: summaries of completed replays (`ReplaySummary`).
    problems: replays that failed.
    held: the replay is suspended.
    ending: no further replay begins.
    """

    folder: Path
    env: Mapping[str, str]
    log: Path
    loops: int
    spool: Path | None = None
    speed: str = "max"
    runs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    held: bool = False
    ending: bool = False
    _held_s: float = 0.0
    _logged: int = 0
    _process: subprocess.Popen[str] | None = None

    @property
    def is_flowing(self) -> bool:
        """Return whether a replay is publishing."""
        return self._process is not None and not self.held

    @property
    def is_over(self) -> bool:
        """Return whether no more rows will come."""
        return self.ending and self._process is None and not self.spools()

    def spools(self) -> list[Path]:
        """Return the folders in the spool, one a replay; the agent removes those that it has delivered.

        The agent's own folder, for samples of devices, exists for as long as it runs and is left out.
        """
        if self.spool is None or not self.spool.is_dir():
            return []
        return [
            path for path in sorted(self.spool.iterdir()) if not path.name.startswith(".") and not is_agents_spool(path)
        ]

    def begin(self, speed: str) -> None:
        """Begin a new round at this speed."""
        self.speed, self.ending = speed, False
        self.runs.clear()

    def tick(self, seen: ProgressSnapshot | None, now_s: float) -> None:
        """Suspend or resume the replay, take its summary, or start the next one.

        `seen` is None while the broker is away; `now_s` is monotonic.
        """
        if self._process is None:
            if seen is not None and not self.ending:
                self._start()
            return
        if self._process.poll() is not None:
            self._finish()
            return
        behind = max(seen.lag.values()) / HIGH if seen else 0.0
        behind = max(behind, sum(map(bytes_waiting, self.spools())) / SPOOLED)
        if self.held and (behind < LOW or now_s - self._held_s > RESUME_S):
            self._signal(signal.SIGCONT)
        elif not self.held and behind > 1:
            self._signal(signal.SIGSTOP)
            self._held_s = now_s

    def _start(self) -> None:
        options = ["--speed", self.speed, "--loop", str(self.loops), "--keep-time", "--job", JOB, "--json"]
        if self.spool is not None:
            options += ["--spool", str(self.spool)]
        with self.log.open("ab") as errors:
            self._logged = errors.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.cli.app", "replay", str(self.folder), *options],
                env=dict(self.env), stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.held = False

    def _finish(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.read()
        if self._process.returncode == 0:
            self.runs.append(json.loads(output))
        elif output or not UNREACHABLE.search(self.log.read_bytes(), self._logged):
            self.problems.append(f"a replay ended with exit code {self._process.returncode}; see {self.log}")
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self.held = number == signal.SIGSTOP

    def stop(self) -> None:
        """Kill the replay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def is_agents_spool(spool: Path) -> bool:
    """Return whether an agent writes this spool; False where that is not known yet."""
    with suppress(OSError, ValueError, KeyError):
        return bool(json.loads((spool / IDENTITY).read_text())["process"]["source"] == "agent")
    return False


def bytes_waiting(spool: Path) -> int:
    """Return the bytes in closed segments of one spool, which the agent deletes once Kafka has them.

    The last segment is left out: its writer may append to it, and a suspended writer would never close it.
    """
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(spool):
            number = file.name.partition(".")[0]
            if number.isdecimal():
                with suppress(FileNotFoundError):
                    sizes[number] = file.stat().st_size
    return sum(sizes[number] for number in sorted(sizes)[:-1])


def bytes_in(folder: Path) -> int:
    """Return the bytes on disk; files that vanish meanwhile do not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total
