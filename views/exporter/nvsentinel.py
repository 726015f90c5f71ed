"""Sends events about nodes to NVSentinel's platform connector, by gRPC over its socket: the extra `nvsentinel`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog
from google.protobuf import empty_pb2

from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry.metrics import EXPORTER_EXPORTS
from drumline.streams.core.thresholds import WARNING
from drumline.views.exporter.events import VERDICT, VerdictEvent
from drumline.views.exporter.families import Families
from drumline.views.exporter.health_event import METHOD, health_events
from drumline.views.exporter.request_spans import RequestSpan

log = structlog.get_logger()
#: Time for an answer, and for what is left at the end; s. Events that wait for the connector; new ones are left out.
TIMEOUT_S, CLOSE_S, MOST_WAITING = 5.0, 5.0, 4_096
#: Label of the counter.
TO = "nvsentinel"


def concerns_node(event: VerdictEvent) -> bool:
    """Return whether an event is about a node: it names a host, and an alarm is more than suspect, or over."""
    is_alarm = event.kind != VERDICT or event.is_over or event.severity >= WARNING
    return bool(event.row.host) and is_alarm


class NvSentinel:
    """Sends in a thread of its own, and again until the connector takes an event: it may take one twice."""

    def __init__(self, socket: Path, acts: bool) -> None:
        self._socket, self._acts = socket, acts
        self._waiting: queue.Queue[VerdictEvent] = queue.Queue(MOST_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvsentinel", daemon=True)
        self._thread.start()

    def take(self, now: Families, events: Sequence[VerdictEvent], spans: Sequence[RequestSpan]) -> None:
        """Queue the events that are about a node."""
        for event in filter(concerns_node, events):
            try:
                self._waiting.put_nowait(event)
            except queue.Full:
                EXPORTER_EXPORTS.labels(TO, "left_out").inc()

    def close(self) -> None:
        """Send what is queued, for CLOSE_S at most."""
        self._stopping.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            send = channel.unary_unary(METHOD, lambda message: message.SerializeToString(), empty_pb2.Empty.FromString)
            while not (self._stopping.is_set() and self._waiting.empty()):
                try:
                    event = self._waiting.get(timeout=0.2)
                except queue.Empty:
                    continue
                self._send(send, event)

    def _send(self, send: Any, event: VerdictEvent) -> None:
        retry = Retry()
        while True:
            try:
                send(health_events([event], self._acts), timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                EXPORTER_EXPORTS.labels(TO, "failed").inc()
                log.warning("NVSentinel does not take an event, it is tried again", socket=str(self._socket),
                            reason=str(error.code()))  # fmt: skip
                if self._stopping.wait(retry.failed(time.monotonic(), 1.0)):
                    return
            else:
                EXPORTER_EXPORTS.labels(TO, "sent").inc()
                return
