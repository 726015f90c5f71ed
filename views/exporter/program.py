"""The exporter's main loop: read Kafka, render once a tick, give what changed to the receivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.health import Health
from drumline.schemas.codec import Codec
from drumline.views.exporter.events import EventLog, VerdictEvent
from drumline.views.exporter.exposition import Exposition
from drumline.views.exporter.families import Families, SeriesLimits, families
from drumline.views.exporter.live_runs import LiveRuns
from drumline.views.exporter.options import ExporterOptions
from drumline.views.exporter.request_spans import RequestSpan
from drumline.views.exporter.run_state import SECOND_NS
from drumline.views.exporter.verdict_feed import VerdictFeed

log = structlog.get_logger()
#: Period of rendering, and the longest wait for a record; s.
TICK_S, POLL_S = 5.0, 0.5
#: Path below which a node's problems are, for a check on the node.
NODES = "/nodes/"


class VerdictReceiver(Protocol):
    """Takes what the exporter knows; calls return at once, and what fails is logged and counted."""

    def take(self, now: Families, events: Sequence[VerdictEvent], spans: Sequence[RequestSpan]) -> None:
        """Take all series, what changed since the last call, and requests of inference engines that ended since."""

    def close(self) -> None:
        """Send what is left, within some seconds."""


class Exporter:
    """Runs in one thread; the server's threads call `expose` and `page`."""

    def __init__(
        self,
        settings: Settings,
        options: ExporterOptions,
        codec: Codec,
        health: Health,
        receivers: Sequence[VerdictReceiver],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._health, self._receivers, self._now, self._clock = health, receivers, now, clock
        self._expire_ns = int(options.expire_s * SECOND_NS)
        self._limits = SeriesLimits(options.worst, options.series)
        self._fleet, self._log, self._exposition = LiveRuns(), EventLog(), Exposition()
        self._feed = VerdictFeed(settings, options, codec, self._fleet, now(), clock())
        self._is_complete = False
        self.expose = self._exposition.expose

    def run(self, stopping: Callable[[], bool]) -> None:
        """Run until `stopping`. Verdicts are shown once the log was read to its end: an older state is no state."""
        due_s = self._clock()
        while not stopping():
            self._health.heartbeat()
            self._feed.poll(max(0.0, min(POLL_S, due_s - self._clock())))
            self._is_complete = self._is_complete or self._feed.is_complete
            if self._clock() >= due_s:
                self._tick()
                due_s = self._clock() + TICK_S
        for receiver in self._receivers:
            receiver.close()
        self._feed.close()

    def _tick(self) -> None:
        behind = "" if self._is_complete else "the log is not read to its end yet"
        self._health.set_reason("kafka", self._feed.problem or behind)
        if not self._is_complete:
            return
        now_ns = int(self._now() * SECOND_NS)
        self._fleet.expire(now_ns, self._expire_ns)
        shown = families(self._fleet, self._limits, now_ns)
        self._exposition.render(shown)
        changed = self._log.advance(self._fleet, now_ns)
        for event in changed:
            log.info(event.kind, state=event.state, text=event.text)
        spans = self._feed.new_spans()
        for receiver in self._receivers:
            receiver.take(shown, changed, spans)

    def page(self, path: str) -> str | None:
        """Return the text about a node for a check that runs on it; None for another path.

        The first line is ok, problem or unknown, the second a sentence.
        """
        node = path.removeprefix(NODES)
        if node in ("", path):
            return None
        if not self._is_complete or self._feed.problem:
            return "unknown\ndrumline's exporter does not read Kafka\n"
        events = self._log.at_host(node)
        return f"problem\n{events[0].text}\n" if events else "ok\nno rank of this node holds a job back\n"
