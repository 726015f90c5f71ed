"""The node agent: every process's spool folder into Kafka, however often Kafka, the processes or the agent itself die.

One thread. A batch is in the spool until Kafka acknowledged it; what is known of that survives a kill in the cursor.
A batch published again after a kill has its old sequence: the sink's ledger knows it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.producers.agent.cursor import Cursor
from drumline.producers.agent.producer import Sender
from drumline.producers.agent.tailer import Tail
from drumline.producers.spool.directory import SpoolDirectory, folders
from drumline.producers.spool.layout import IDENTITY, BadSpool
from drumline.producers.spool.reader import Segment
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryUnavailable, UnknownSchema

log = structlog.get_logger()

#: Between two looks at what writers have added; s.
PUMP_S = 0.1
#: Between two looks at who is there, and two saves of the cursor; s.
LOOK_S = 1.0
#: A folder whose process died before it said who it is goes at that age; s.
ORPHAN_S = 60.0


def deleted(segment: Segment, folder: SpoolDirectory) -> None:
    """What becomes of a segment that is in Kafka, where nothing else is wanted."""
    try:
        segment.delete()
    except OSError as error:
        log.error("cannot delete a published segment", folder=folder.path.name, error=error.strerror)


class Agent:
    """`tails`: by folder name. `processes`: who lives on this host, for other threads. `until_empty`: end once no
    process's folder is left."""

    def __init__(
        self,
        settings: Settings,
        cursor: Cursor,
        sender: Sender,
        codec: Codec,
        health: Health,
        *,
        stopping: Callable[[], bool] = lambda: False,
        until_empty: bool = False,
        done: Callable[[Segment, SpoolDirectory], None] = deleted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._root = settings, settings.spool.root
        self._cursor, self._sender, self._codec, self._health = cursor, sender, codec, health
        self._stopping, self._until_empty, self._done, self._clock = stopping, until_empty, done, clock
        self._look_at = float("-inf")
        self._registry, self._no_registry = Retry(), ""
        self._alone: dict[str, str] = {}  # folders that cannot be looked into, and why
        self._others: set[str] = set()  # folders that are no process's
        self._finished = 0
        self.tails: dict[str, Tail] = {}
        self.processes: Sequence[Mapping[str, Any]] = ()
        metrics.AGENT_AGE.set_function(lambda: sender.age_s)

    def run(self, last: Callable[[], None] = lambda: None) -> None:
        """Until `stopping`, or until nothing is left if that was asked for. Then `last`, what it spooled, and a bounded
        wait for Kafka."""
        while not self._stopping():
            self._health.heartbeat()
            moved = self.turn()
            if self._until_empty and not self.tails and not self._left():
                log.info("all is in Kafka that was in the spool", root=str(self._root), processes=self._finished)
                break
            self._sender.poll(0 if moved else PUMP_S)
        last()
        self.turn()
        missing = self._sender.flush(self._settings.agent.flush_s)
        self._save()
        for tail in self.tails.values():
            tail.close()
        if missing:
            log.info("stopped before Kafka answered for everything; the spool keeps it", batches=missing)

    def turn(self) -> bool:
        """One round over all folders. True if something moved."""
        ready = self._sender.ready()
        self._health.set_reason("kafka", self._sender.problem)
        if self._clock() >= self._look_at:
            self._look(ready)
            self._look_at = self._clock() + LOOK_S
        moved = False
        for tail in list(self.tails.values()) if ready else []:
            if not tail.problem:
                moved = self._guarded(tail, partial(tail.pump, self._sender.send)) or moved
        return moved

    def _look(self, ready: bool) -> None:
        self._discover()
        for name, tail in list(self.tails.items()):
            before, tail.problem = tail.problem, ""
            if not tail.folder.path.exists():
                tail.close()
                del self.tails[name]
            else:
                self._guarded(tail, tail.look)
                if ready and not tail.problem:
                    self._guarded(tail, partial(self._introduce, name, tail))
            if tail.problem and tail.problem != before:
                log.warning("a spool folder waits", folder=name, problem=tail.problem)
        self.processes = [tail.seen.process for tail in self.tails.values() if tail.seen and not tail.gone]
        stuck = [*self._alone.values(), *(tail.problem for tail in self.tails.values() if tail.problem)]
        self._health.set_reason("spool", f"{len(stuck)} folders wait, one says: {stuck[0]}" if stuck else "")
        self._save()
        self._observe()

    def _discover(self) -> None:
        try:
            found = [folder for folder in folders(self._root) if folder.path.name not in self.tails]
            self._health.set_reason("root", "")
        except OSError as error:
            self._health.set_reason("root", f"{self._root}: {error.strerror}")
            return
        before, self._alone = self._alone, {}
        for folder in found:
            try:
                if (folder.path / IDENTITY).exists():
                    positions = self._cursor.positions.get(folder.path.name, {})
                    self.tails[folder.path.name] = Tail(folder, positions, self._codec, self._done)
                elif folder.path.name not in self._others:
                    self._nameless(folder)
            except FileNotFoundError:  # gone since
                continue
            except (OSError, BadSpool) as error:
                self._alone[folder.path.name] = str(error)
                if folder.path.name not in before:
                    log.warning("a folder in the spool is left alone", folder=folder.path.name, problem=str(error))

    def _nameless(self, folder: SpoolDirectory) -> None:
        """One without an identity: gone where its writer died at once, else left alone. Raises OSError, BadSpool."""
        if folder.foreign():
            name, root = folder.path.name, str(self._root)
            self._others.add(name)
            log.warning("a folder in the spool is no process's: it is left alone", folder=name, root=root)
            return
        old = time.time() - folder.path.stat().st_mtime > ORPHAN_S
        if old and not (folder.path / IDENTITY).exists() and folder.gone():
            folder.remove_nameless()

    def _left(self) -> bool:
        """Whether a folder is there that was not looked at yet."""
        try:
            return any(folder.path.name not in self._others for folder in folders(self._root))
        except OSError:
            return False

    def _introduce(self, name: str, tail: Tail) -> None:
        if tail.identity is None and self._no_registry and self._clock() < self._registry.at:
            tail.problem = self._no_registry  # it takes its time to not answer: asked for one folder, not for all
            return
        try:
            tail.introduce(self._sender.send)
        except RegistryUnavailable as error:
            self._no_registry = str(error)
            self._registry.failed(self._clock(), 0.5 + random.random() / 2)
            raise
        self._no_registry = ""
        self._registry.worked()
        if tail.finished:
            tail.folder.remove()
            del self.tails[name]
            self._finished += 1
            log.info("a process is done", folder=name)

    def _guarded(self, tail: Tail, what: Callable[[], bool | None]) -> bool:
        """Run it; what goes wrong concerns this folder only, and is tried again at the next look."""
        try:
            return bool(what())
        except (BadSpool, UnknownSchema, RegistryUnavailable) as error:  # the last one is an OSError too
            tail.problem = str(error)
        except OSError as error:
            tail.problem = f"{error.strerror}: {Path(str(error.filename or '')).name}"
        return False

    def _save(self) -> None:
        try:
            self._cursor.save({name: at for name, tail in self.tails.items() if (at := tail.positions)})
            self._health.set_reason("cursor", "")
        except OSError as error:  # publishing goes on; after a kill more would be published again
            self._health.set_reason("cursor", f"the cursor cannot be saved: {error.strerror}")

    def _observe(self) -> None:
        alive = sum(not tail.gone for tail in self.tails.values())
        metrics.AGENT_PROCESSES.labels("alive").set(alive)
        metrics.AGENT_PROCESSES.labels("gone").set(len(self.tails) - alive)
        metrics.AGENT_WAITING.set(self._sender.waiting)
        size = 0
        for tail in self.tails.values():
            try:
                size += tail.folder.takes()
            except OSError:
                continue
        metrics.AGENT_SPOOL.set(size)
