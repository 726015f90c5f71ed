"""The node agent: publishes the spools of this host's processes to Kafka.

A batch stays in the spool until Kafka has acknowledged it, so outages and kills of Kafka, processes or the agent lose
nothing. The cursor holds what is acknowledged across a kill. A batch published again keeps its sequence, by which the
sink's ledger recognises it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.producers.agent.cursor import Cursor
from drumline.producers.agent.discovery import FolderDiscovery
from drumline.producers.agent.joiner import RecordJoiner
from drumline.producers.agent.kept_rows import KeptRows
from drumline.producers.agent.producer import KafkaSender
from drumline.producers.agent.tailer import SpoolTailer
from drumline.producers.host.targets import RecordedProcess, recorded_process
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.rings.progress import RasAnswer
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import BadSpool
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.reader import Segment
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadSchema, RegistryUnavailable, UnknownSchema

log = structlog.get_logger()

#: Period of polling the spools; s.
PUMP_S = 0.1
#: Period of listing folders whatever their root's time shows, refreshing identities and saving the cursor; s.
REFRESH_S = 1.0
#: Least period in multiples of its own duration: many folders take no time from publishing.
REFRESH_SHARE = 5
#: Time after which a tick ends and the next one goes on with the next folder; s.
TICK_S = 0.5
#: Time that a stop waits for Kafka's acknowledgements; what is not acknowledged is published again. systemd and the
#: chart kill after 30 s; s.
FLUSH_S = 10.0


def deleted(segment: Segment, folder: SpoolDirectory) -> None:
    """Delete a segment that is in Kafka, where nothing is archived."""
    try:
        segment.delete()
    except OSError as error:
        log.error("cannot delete a published segment", folder=folder.path.name, error=error.strerror)


@dataclass(frozen=True)
class AgentOptions:
    """Behaviour of an agent.

    Attributes:
        stopping: returns whether the agent should stop.
        until_empty: stop once the spool holds no process's folder.
        done: called with each segment that is in Kafka.
        kept: takes rows that stay on the host.
        clock: monotonic seconds.
        flush_s: see FLUSH_S.
    """

    stopping: Callable[[], bool] = lambda: False
    until_empty: bool = False
    done: Callable[[Segment, SpoolDirectory], None] = deleted
    kept: KeptRows | None = None
    clock: Callable[[], float] = time.monotonic
    flush_s: float = FLUSH_S


class Agent:
    """Publishes every spool of the host, in the thread that calls `run`.

    `drumline agent` makes one a host and closes the cursor behind it. A tick blocks for file I/O, for at most
    PROBE_TIMEOUT_S while Kafka is away, and for one request to the registry.

    Attributes:
        tails: by folder name.
        gpus: uuid and model by process, from NVML's thread.
        ras: what NCCL's RAS stated of the run of a process, by process id, from its reader's thread.
        processes: envelopes of the processes that are alive on this host; other threads may read it.
        recorded: the same, with what may be read of them.
    """

    def __init__(
        self,
        settings: Settings,
        cursor: Cursor,
        sender: KafkaSender,
        codec: Codec,
        health: Health,
        options: AgentOptions | None = None,
    ) -> None:
        self._settings, self._root = settings, settings.spool.root
        self._cursor, self._sender, self._codec, self._health = cursor, sender, codec, health
        self._options = options or AgentOptions()
        self._clock = self._options.clock
        self._joiner = RecordJoiner(sender.send, codec, self._clock)
        self._refresh_at = self._begin_at = float("-inf")
        self._registry, self._no_registry = Retry(), ""
        self._folders = FolderDiscovery(self._root)
        spool = settings.spool
        limits = SpoolLimits(max_bytes=spool.max_mb << 20)
        self.gpus: dict[int, dict[str, str]] = {}
        self.ras: dict[str, RasAnswer] = {}
        self._rings = RingFolder(settings.rings_folder, self._root, limits, self._clock, self.gpus, self.ras)
        self._kept = self._options.kept
        self._is_caught_up = False
        self._finished = self._start = 0
        self.tails: dict[str, SpoolTailer] = {}
        self.processes: Sequence[Mapping[str, Any]] = ()
        self.recorded: Sequence[RecordedProcess] = ()
        metrics.AGENT_AGE.set_function(lambda: sender.age_s)

    @property
    def jobs_in_part(self) -> Collection[str]:
        """Return the jobs of this host of which NCCL measures a part of the steps; other threads may read it."""
        return self._rings.jobs_in_part

    def run(self, last: Callable[[], None] = lambda: None) -> None:
        """Publish until `stopping`, or until the spool is empty with `until_empty`.

        Then call `last`, publish what it spooled, and wait a bounded time for Kafka.
        """
        while not self._options.stopping():
            self._health.heartbeat()
            moved = self.tick()
            if self._options.until_empty and self._kept is not None:
                self._kept.end(self.tails.keys())
            is_empty = self._rings.is_empty and not self.tails and not self._folders.has_unread()
            is_empty = is_empty and (self._kept is None or self._kept.windows.is_idle)
            if self._options.until_empty and is_empty:
                log.info("the spool is empty: everything is in Kafka", root=str(self._root), processes=self._finished)
                break
            self._sender.poll(0 if moved else PUMP_S)
        last()
        if self._kept is not None:
            self._kept.close()
        self.tick()
        self._joiner.flush()
        missing = self._sender.flush(self._options.flush_s)
        self._save()
        for tail in self.tails.values():
            tail.close()
        self._rings.close()
        if missing:
            log.info("stopped before Kafka acknowledged everything; the spool keeps the rest", batches=missing)

    def tick(self) -> bool:
        """Process all rings and folders once; return whether anything moved."""
        self._rings.round(time.time_ns())  # first: it goes on in folders that are taken for those of ended processes
        self._health.set_reason("rings", self._rings.problem)
        ready = self._sender.ready()
        self._health.set_reason("kafka", self._sender.problem)
        if (begun := self._clock()) >= self._refresh_at:
            self._refresh(ready)
            if self._kept is not None:
                self._kept.tick(self._is_caught_up)
                self._health.set_reason("windows", self._kept.windows.problem)
            took = self._clock() - begun
            self._refresh_at = begun + took + max(REFRESH_S, REFRESH_SHARE * took)
        elif begun >= self._begin_at and self._folders.has_news():  # people wait for the first rows of a deep window
            self._begin_new(ready)
        moved = False
        tails = [tail for tail in self.tails.values() if not tail.problem] if ready else []
        start, until = self._start % max(len(tails), 1), self._clock() + TICK_S
        for tail in (*tails[start:], *tails[:start]):
            moved = self._guarded(tail, partial(tail.pump, self._joiner.send)) or moved
            self._start += 1
            if self._clock() >= until:
                break
        else:
            self._start += 1  # not always the same folder fills the client's queue first
        if ready:
            self._joiner.flush(due_only=True)
        blocked = [tail.folder.path.name for tail in self.tails.values() if tail.problem]
        keeps_all = self._kept is None or not any(map(self._kept.segments.keeps, blocked))
        self._is_caught_up = ready and not moved and keeps_all
        return moved

    def _refresh(self, ready: bool) -> None:
        """Find new folders, update what is known of writers, publish identities, save the cursor."""
        self._open_folders()
        for name, tail in list(self.tails.items()):
            self._refresh_folder(name, tail, ready)
        self.processes = [tail.seen.process for tail in self.tails.values() if tail.seen and not tail.writer_exited]
        self.recorded = self._recorded()
        waiting = self._no_registry and any(tail.problem == self._no_registry for tail in self.tails.values())
        self._health.set_reason("registry", self._no_registry if waiting else "")
        self._save()
        self._observe()

    def _begin_new(self, ready: bool) -> None:
        """Find new folders and publish their identities; all else waits for `_refresh`."""
        begun, known = self._clock(), set(self.tails)
        self._open_folders()
        for name in self.tails.keys() - known:
            self._refresh_folder(name, self.tails[name], ready)
        self._begin_at = self._clock() + REFRESH_SHARE * (self._clock() - begun)

    def _refresh_folder(self, name: str, tail: SpoolTailer, ready: bool) -> None:
        before, tail.problem = tail.problem, ""
        if not tail.folder.is_present():
            tail.close()
            del self.tails[name]
        else:
            self._guarded(tail, tail.refresh)
            if ready and not tail.problem:
                self._guarded(tail, partial(self._publish_identity, name, tail))
        if tail.problem and tail.problem != before:
            log.warning("a spool folder is blocked", folder=name, problem=tail.problem)

    def _recorded(self) -> list[RecordedProcess]:
        """Return the processes of jobs that are alive. What a record states of a user counts for that user only."""
        rings, agent_user, result = self._rings.sources(), os.geteuid(), []
        for tail in self.tails.values():
            if tail.seen is not None and not tail.writer_exited:
                ring = rings.get(tail.seen.process_id) if tail.folder.user == agent_user else None
                process = recorded_process(tail.seen.process, tail.folder.user, ring)
                result += [process] if process is not None else []
        return result

    def _open_folders(self) -> None:
        """Begin to publish the folders that are new."""
        retention = self._settings.clickhouse.retention

        def begin(folder: SpoolDirectory) -> None:
            name = folder.path.name
            positions, done = self._cursor.positions.get(name, {}), self._options.done
            done = done if self._kept is None else self._kept.before(done)
            self.tails[name] = SpoolTailer(folder, positions, self._codec, done, retention, self._kept)

        try:
            self._folders.refresh({name: tail.folder.user for name, tail in self.tails.items()}, begin)
            self._health.set_reason("root", "")
        except OSError as error:
            self._health.set_reason("root", f"{self._root}: {error.strerror}")

    def _publish_identity(self, name: str, tail: SpoolTailer) -> None:
        if tail.identity is None and self._no_registry and self._clock() < self._registry.at:
            tail.problem = self._no_registry  # one slow request for all folders
            return
        try:
            tail.publish_identity(self._joiner.send)
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
            old = {"old_rows": tail.old_rows} if tail.old_rows else {}
            log.info("a process is published completely", folder=name, **old)

    def _guarded(self, tail: SpoolTailer, action: Callable[[], bool | None]) -> bool:
        """Run an action; an error concerns this folder only, and the action is repeated after the next refresh."""
        try:
            return bool(action())
        except (BadSpool, BadSchema, UnknownSchema, RegistryUnavailable) as error:  # the last one is an OSError too
            tail.problem = str(error)
        except OSError as error:
            tail.problem = f"{error.strerror}: {Path(str(error.filename or '')).name}"
        except Exception as error:  # whatever a user has written, the folders of others go on
            log.exception("a spool folder fails", folder=tail.folder.path.name)
            tail.problem = f"{type(error).__name__}: {error}"
        return False

    def _save(self) -> None:
        try:
            self._cursor.save({name: at for name, tail in self.tails.items() if (at := tail.positions)})
            self._health.set_reason("cursor", "")
        except OSError as error:  # publishing continues; after a kill more is repeated
            self._health.set_reason("cursor", f"the cursor cannot be saved: {error.strerror}")

    def _observe(self) -> None:
        alive = sum(not tail.writer_exited for tail in self.tails.values())
        metrics.AGENT_PROCESSES.labels("alive").set(alive)
        metrics.AGENT_PROCESSES.labels("exited").set(len(self.tails) - alive)
        blocked = sum(bool(tail.problem) for tail in self.tails.values())
        metrics.AGENT_BLOCKED.set(blocked + len(self._folders.unreadable) + self._folders.waiting)
        metrics.AGENT_WAITING.set(self._sender.waiting)
        size = 0
        for tail in self.tails.values():
            try:
                size += tail.folder.disk_bytes()
            except OSError:
                continue
        metrics.AGENT_SPOOL.set(size)
