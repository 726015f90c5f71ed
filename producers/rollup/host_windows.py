"""Windows of the rows that stay on this host: the stream worker's stages, run by the agent.

A kept batch counts as settled once the state with its rows is saved, after the windows that it closed are in the spool.
So a killed agent reads it again, and the stage finds it applied; or it publishes a window twice, with the same content.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import structlog

from drumline.infra.runtime.stage import Stage, open_windows
from drumline.infra.telemetry import metrics
from drumline.producers.rollup.saved_state import StateFile
from drumline.producers.spool.segment_format import Frame
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch, decode
from drumline.schemas.bounds.check import check
from drumline.schemas.keys import record_key
from drumline.schemas.model import RecordModel, model
from drumline.schemas.record_table import BatchTable

log = structlog.get_logger()

#: Name of the state's file.
STATE = "windows.db"
#: Newest answers to pulls that the windows' process record has.
MOST_ANSWERS = 64
#: Time after which rows are published further though their windows cannot be saved: a kill may lose those; s.
MOST_FAILING_S = 30.0
#: Reason of dropped rows -> count of a stage.
STAGE_DROPS = {"quarantined": "quarantined_rows", "budget": "denied_rows", "repeated": "repeated_rows"}


#: Source topic -> what makes its stage from the stage's stored values.
MakeStages = Mapping[str, Callable[[MutableMapping[str, bytes]], Stage]]


class HostWindows:
    """Counts kept rows in windows and spools these. In the agent's thread, but for `answer`.

    `problem`: reason why the state cannot be saved, or "".
    """

    _failing_since: float | None
    _unsaved: Counter[str]

    def __init__(
        self,
        folder: Path,
        make: MakeStages,
        spool: Callable[[], SpoolWriter],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_spool, self._lock = spool, threading.Lock()
        self._spool: SpoolWriter | None = None
        self._path, self._make = folder / STATE, make
        self._file: StateFile | None = None
        self._stages: dict[str, Stage] = {}
        self._released: list[Callable[[], None]] = []
        self._answers: dict[str, str] = {}
        self._counted: dict[tuple[str, str], int] = {}
        self._is_closed = False
        self._clock, self._failing_since, self._unsaved = clock, None, Counter()
        self.problem = ""
        self._open()

    @property
    def is_ready(self) -> bool:
        """Return whether rows can be taken: the state is open."""
        return self._file is not None

    def _open(self) -> None:
        """Open the state; where that is not possible now, the next `tick` tries again."""
        try:
            self._file, self._stages = self._restored(self._path, self._make)
            self.problem = ""
        except OSError as error:
            self.problem = f"windows of kept rows: their state {error.strerror or error}"

    def _restored(self, path: Path, make: MakeStages) -> tuple[StateFile, dict[str, Stage]]:
        """Return the stages as they were saved; a state that this version cannot read is dropped."""
        for _ in range(2):
            try:
                file = StateFile(path)
                self._counter = file.state("agent")
                return file, {topic: build(file.state(topic)) for topic, build in make.items()}
            except sqlite3.OperationalError as error:  # locked, or the disk is full: it may be good
                raise OSError(errno.EAGAIN, f"cannot be opened now: {error}", str(path)) from None
            except (sqlite3.DatabaseError, ValueError) as error:
                log.error("windows of kept rows begin again: their state cannot be read", error=str(error))
                for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                    path.with_name(name).unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written")

    @property
    def is_idle(self) -> bool:
        """Return whether every window is in the spool."""
        return not self._released and not any(open_windows(stage) for stage in self._stages.values())

    @property
    def folder(self) -> str:
        """Return the name of the windows' spool folder; "" without one."""
        return self._spool.position[0] if self._spool is not None else ""

    def take(self, frame: Frame, writer: RecordModel, now_ns: int, release: Callable[[], None]) -> None:
        """Count the rows of a batch; `release` is called once they are safe. `writer`: schema of its bytes."""
        if self._is_closed:
            return  # the next agent reads it again
        self._released.append(release)
        self._unsaved[frame.topic] += frame.rows
        metrics.AGENT_KEPT.labels(frame.topic).inc(frame.rows)
        if (stage := self._stages.get(frame.topic)) is None:
            return
        try:
            batch = decode(writer, frame.body, model(frame.topic))
            check(batch, now_ns // 1_000_000)
            batch.content = zlib.crc32(frame.body) or 1
            windows = stage.apply(BatchTable.of([batch]), np.array([self._next_offset()]), now_ns)
            for failure in stage.failed.values():
                raise failure
        except Exception as error:  # BadRecord; or the state of its process raised, and is in quarantine now
            log.error("a kept batch is in no window", topic=frame.topic, rows=frame.rows, problem=_described(error))
            metrics.AGENT_DROPPED.labels(frame.topic, "left_out").inc(frame.rows)
            windows = []
        self._publish(stage, windows)

    def tick(self, now_ns: int, caught_up: bool) -> None:
        """Close the windows of silent processes; `caught_up`: all that is in the spools was taken."""
        if not self._is_closed and self._file is None:
            self._open()
        for topic, stage in self._stages.items() if not self._is_closed else ():
            self._publish(stage, stage.on_tick(now_ns, caught_up))
            self._count(topic, stage)

    def save(self) -> None:
        """Save the state, and release the batches that it has."""
        if self._is_closed or self._file is None:
            return
        try:
            self._file.save()
        except sqlite3.Error as error:
            self.problem = f"windows of kept rows cannot be saved: {error}"
            self._failing_since = self._failing_since if self._failing_since is not None else self._clock()
            if self._clock() - self._failing_since < MOST_FAILING_S:
                return
            for topic, rows in self._unsaved.items():  # steps behind them would wait, and with them all verdicts
                metrics.AGENT_DROPPED.labels(topic, "unsaved").inc(rows)
        else:
            self.problem, self._failing_since = "", None
        self._unsaved.clear()
        released, self._released = self._released, []
        for release in released:
            release()

    def answer(self, name: str, text: str) -> None:
        """State what became of a pull, in the process record of the windows' spool. Any thread."""
        with self._lock:
            self._answers.pop(name, None)
            self._answers[name] = text
            self._answers = dict(list(self._answers.items())[-MOST_ANSWERS:])
            self._writer().identify({"collector": self._answers})

    def end_spool(self) -> None:
        """Close the spool; the next window opens another."""
        with self._lock:
            if self._spool is not None:
                self._spool.close()
            self._spool = None

    def close(self) -> None:
        """Save the state and close the files. What is open is published by the next agent."""
        self.save()
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        self.end_spool()

    def _publish(self, stage: Stage, windows: Sequence[Batch]) -> None:
        for batch in windows:
            try:
                with self._lock:
                    self._writer().append_batch(record_key(batch), batch)  # what the spool loses it counts
            except Exception as error:  # Unencodable: its process states what no record can have
                stage.reject(batch, error)
            else:
                stage.mark_sent(batch)
        for incident in stage.incidents:
            log.error("windows of a process begin again", process=str(incident.unit), error=str(incident.error))
        stage.incidents.clear()

    def _count(self, topic: str, stage: Stage) -> None:
        """Count the rows that the stage has dropped since the last time."""
        for reason, name in STAGE_DROPS.items():
            rows = int(getattr(stage, name))
            metrics.AGENT_DROPPED.labels(topic, reason).inc(rows - self._counted.get((topic, reason), 0))
            self._counted[topic, reason] = rows

    def _writer(self) -> SpoolWriter:
        """Return the spool of the windows. `_lock` is held."""
        self._spool = self._spool or self._make_spool()
        return self._spool

    def _next_offset(self) -> int:
        """Return a number that is higher than all before, over restarts: it stands for an offset in Kafka."""
        number = int(self._counter.get("offset", b"0")) + 1
        self._counter["offset"] = b"%d" % number
        return number


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
