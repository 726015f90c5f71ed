"""Attachment of CUPTI to this process: the shared buffers, a decoder process that reads them, and the collector."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from drumline.producers.collector import cupti as cupti_library
from drumline.producers.collector import decoder_process, marks, process_info
from drumline.producers.collector.collector import Collector
from drumline.producers.collector.counter import LaunchCounter
from drumline.producers.collector.event_socket import event_sockets
from drumline.producers.collector.pc_sampling import PcSampler, load_driver
from drumline.producers.collector.stack_samples import ThreadSampler
from drumline.producers.ipc.buffer_pool import BufferPool, Header, new_pool
from drumline.producers.ipc.count_layout import CountField
from drumline.producers.ipc.events import MARK, warn
from drumline.producers.ipc.policy import ALWAYS, Policy

#: Time at the end of the process in which the decoder may read what is left; s.
DRAIN_S = 2.0
#: Most decoders of a process: one that was killed is replaced, but not for ever.
MAX_DECODERS = 5


class Attachment:
    """Holds the collector, the buffers and the decoder of this process.

    Created by `attach`, closed at the end of the process. `send_event` and `mark` may be called from any thread and
    never block; what cannot be sent at once is dropped and counted. `close` takes up to DRAIN_S.

    `pool`: the shared buffers. `decoder`: pid of the decoder. `collector`: records into the pool.
    """

    def __init__(self, cupti: cupti_library.Cupti, policy: Policy, active_profiler: str = "") -> None:
        self.pool: BufferPool = new_pool(policy)
        self.decoder, self._decoders_started, self._cupti, self._policy = 0, 0, cupti, str(policy)
        self._finalizes = policy.uses_ring and cupti.version() in cupti_library.FINALIZED_VERSIONS
        self._place: dict[str, int] = {}
        self._gpus: list[dict[str, str]] = []
        callbacks = cupti_library.Callbacks()
        sampler = ThreadSampler(self._send_sample)
        self.collector = Collector(
            cupti, self.pool, callbacks, self.send_event, self._revive_decoder, self._may_finalize, sampler.switch,
            PcSampler(cupti, load_driver, self.pool, self._send_pc_event, policy.mode == ALWAYS),
            LaunchCounter(cupti, self.pool, load_driver, self.send_event),
        )  # fmt: skip
        self._start_decoder()
        if active_profiler:
            self.collector.yield_to(active_profiler)
        self.collector.start()

    def _start_decoder(self) -> None:
        """Start a decoder with a socket to it. Raises OSError."""
        self._decoders_started += 1
        self._events, decoder_end = event_sockets()
        try:
            self.decoder = decoder_process.start(self.pool.fd, decoder_end.fileno())
        finally:
            decoder_end.close()
        more = {"pid": os.getpid(), "decoders": self._decoders_started, "policy": self._policy, **self._place}
        facts = process_info.describe(self._cupti)
        self._gpus = facts["gpus"]
        self.send_event({"event": "attached", **more, **facts})

    def _revive_decoder(self) -> bool:
        """Start another decoder if the last one was killed, and return whether it was.

        It counts its batches from 0: it is another source. Raises OSError, and RuntimeError after MAX_DECODERS or
        where the job has closed the descriptor of the buffers.
        """
        self._send_late_facts()
        if decoder_process.is_alive(self.decoder):
            return False
        closed = not self.pool.has_descriptor
        if closed or self._decoders_started >= MAX_DECODERS:
            reason = f"{self._decoders_started} decoders have died"
            reason = "the job has closed descriptors of drumline" if closed else reason
            warn(f"{reason}: nothing is recorded any more; the job goes on")
            raise RuntimeError(reason)
        self._events.close()
        self._start_decoder()
        return True

    def _send_late_facts(self) -> None:
        """Send what a process may know only after it was attached: its rank, and its GPUs."""
        facts: dict[str, Any] = {}
        if not self._place:
            self._place = process_info.place()
            facts.update(self._place)
        if not self._gpus and (visible := process_info.gpus()):
            self._gpus = facts["gpus"] = visible
        if facts:
            self.send_event({"event": "place", **facts})

    def _may_finalize(self) -> bool:
        """Return whether no CUDA graph is known that a CUPTI which goes would break; the decoder has read all."""
        has_graphs = (
            marks.graph_was_captured or self.pool.header[Header.GRAPHS] or self.pool.count_field(CountField.NODES_USED)
        )
        return self._finalizes and not has_graphs

    def send_event(self, event: dict[str, Any]) -> None:
        """Send an event (JSON values) to the decoder, or drop and count it."""
        self._send(b"J" + json.dumps(event).encode())

    def mark(self, flags: int, number: int, name: str) -> None:
        """Send that a step or scope of the API begins or ends now. Any name is accepted; it is cut at 1,024 bytes."""
        self._send(MARK.pack(b"M", flags, number, time.time_ns()) + str(name).encode(errors="replace")[:1024])

    def close(self) -> None:
        """Stop recording and wait until the decoder has read everything; up to DRAIN_S for both."""
        until = time.monotonic() + DRAIN_S
        self.collector.close(DRAIN_S)
        self.pool.header[Header.ENDED] = 1
        self._events.drain(until)
        self._events.close()

    def forget(self) -> None:
        """Detach in the child of a fork; CUPTI and the decoder belong to the parent."""
        self.collector.forget()
        self._events.close()

    def _send_pc_event(self, event: dict[str, Any]) -> bool:
        """Send an event about samples of the GPU, or drop and count it; return whether it was sent."""
        sent = self._send_sample(b"J" + json.dumps(event).encode())
        self.pool.header[Header.EVENTS_LOST] += not sent
        return sent

    def _send_sample(self, message: bytes) -> bool:
        """Send a sample of stacks or drop it: launches then have the one before, and its age."""
        with contextlib.suppress(OSError):
            self._events.send(message)
            return True
        return False

    def _send(self, message: bytes) -> None:
        try:
            self._events.send(message)
        except OSError:
            self.pool.header[Header.EVENTS_LOST] += 1
