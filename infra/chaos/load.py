"""Continuous load: one replay of a recording after the other, held back while sink or worker are far behind, so that
neither disk nor lag grow without bound, and nobody who is killed is idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.infra.chaos.progress import Snapshot
from drumline.producers.spool.layout import IDENTITY

#: Records that sink or worker are behind, or bytes in the spool that the agent could delete, at which the replay is
#: stopped; and the share of that at which it goes on. A record is about 700 rows on average.
HIGH, SPOOLED, LOW = 800, 4 << 20, 0.4
#: A replay that is held back is let go on for one turn so often, s: a job that is silent for longer than the worker's
#: `idle_s` is judged without what it will still say.
BREATH_S = 4.0
JOB = "chaos"


@dataclass
class Load:
    """`loops`: repetitions of the recording in each replay. `spool`: where replays leave their batches for an agent;
    None: they go to Kafka themselves. `runs`: what finished replays said (`ReplaySummary`). `problems`: replays that
    did not end well."""

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
    _process: subprocess.Popen[str] | None = None

    @property
    def flowing(self) -> bool:
        return self._process is not None and not self.held

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.ending and self._process is None and not self.spools()

    def spools(self) -> list[Path]:
        """Folders in the spool, one a replay; the agent removes those that are done. Its own one, in which it leaves
        samples of devices, is there for as long as it runs."""
        if self.spool is None or not self.spool.is_dir():
            return []
        return [path for path in sorted(self.spool.iterdir()) if not path.name.startswith(".") and not of_agent(path)]

    def begin(self, speed: str) -> None:
        self.speed, self.ending = speed, False
        self.runs.clear()

    def turn(self, seen: Snapshot | None, now_s: float) -> None:
        """Hold it back, let it go on, take its account, start the next one. `seen` None: the broker is away. `now_s`:
        monotonic."""
        if self._process is None:
            if seen is not None and not self.ending:
                self._start()
            return
        if self._process.poll() is not None:
            self._finish()
            return
        behind = max(seen.lag.values()) / HIGH if seen else 0.0
        behind = max(behind, sum(map(bytes_waiting, self.spools())) / SPOOLED)
        if self.held and (behind < LOW or now_s - self._held_s > BREATH_S):
            self._signal(signal.SIGCONT)
        elif not self.held and behind > 1:
            self._signal(signal.SIGSTOP)
            self._held_s = now_s

    def _start(self) -> None:
        options = ["--speed", self.speed, "--loop", str(self.loops), "--keep-time", "--job", JOB, "--json"]
        if self.spool is not None:
            options += ["--spool", str(self.spool)]
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.infra.cli.app", "replay", str(self.folder), *options],
                env=dict(self.env), stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.held = False

    def _finish(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        said = self._process.stdout.read()
        if self._process.returncode == 0:
            self.runs.append(json.loads(said))
        else:
            self.problems.append(f"a replay ended with exit code {self._process.returncode}; see {self.log}")
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self.held = number == signal.SIGSTOP

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def of_agent(spool: Path) -> bool:
    """Whether an agent writes here. Not (yet) known is no."""
    with suppress(OSError, ValueError, KeyError):
        return bool(json.loads((spool / IDENTITY).read_text())["process"]["source"] == "agent")
    return False


def bytes_waiting(spool: Path) -> int:
    """In the segments of one spool that are closed, and go once Kafka has them. The last one stays whatever the agent
    does: its writer may go on with it, unless it is stopped, and then it would be waited for for ever."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(spool):
            number = file.name.partition(".")[0]
            if number.isdecimal():
                with suppress(FileNotFoundError):
                    sizes[number] = file.stat().st_size
    return sum(sizes[number] for number in sorted(sizes)[:-1])


def bytes_in(folder: Path) -> int:
    """On disk; files that vanish meanwhile do not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total
