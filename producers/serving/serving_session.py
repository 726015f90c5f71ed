"""Session of one process of an inference engine: handles its messages, shares out time, publishes rows."""

from __future__ import annotations

import json
import struct
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.batching.process_record import ENDED, process_record
from drumline.producers.engines.iteration_messages import FIRST, GPU, GPU_FOLLOWS, ITERATION, LOST, SAME_BATCH
from drumline.producers.identity import SERVING, Identity, identity
from drumline.producers.ipc.events import warn
from drumline.producers.serving.request_shares import UNKNOWN, RequestShares
from drumline.producers.serving.serving_rows import Row, iteration_row, request_row, table_of
from drumline.producers.spool.location import spool_bytes, spool_root
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: State of a process that is recorded.
ON = "on: iterations and requests"
#: Interval at which rows are written, and of the process's record; ns.
FLUSH_NS = 500_000_000
REPORT_NS = 10_000_000_000
#: Time for which an iteration waits for its GPU time; ns. Its events are read when the next iteration ends.
GPU_NS = 10_000_000_000
#: Time after its end until a request's row is written: an iteration that was scheduled before may hold it yet; ns.
LATE_NS = 1_000_000_000
#: Most iterations that wait.
MOST_ITERATIONS = 1 << 14


class ServingSession:
    """Follows one process of an engine. Driven by main.py in its only thread; writing may block on the disk.

    `message` takes each message, `tick` comes four times a second, `finish` once.
    """

    def __init__(self, pid: int, environment: Mapping[str, str], now_ns: int) -> None:
        self._environment, self._began_ns = environment, now_ns
        self._attached: dict[str, Any] = {"pid": pid}
        self._engine, self._role = "", ""
        self._shares = RequestShares()
        self._iterations: deque[Row] = deque()
        self._by_number: dict[int, Row] = {}
        self._requests: list[Row] = []
        self._spool: SpoolWriter | None = None
        self._writer: BatchWriter | None = None
        self._flush_at = self._report_at = 0
        self._lost = (0, 0)
        self._counts = {"iterations": 0, "requests": 0, "bad_messages": 0}
        self._is_warned = False

    def message(self, data: bytes, now_ns: int) -> None:
        """Take a message; one that cannot be read is counted."""
        try:
            self._take(data, now_ns)
        except (KeyError, TypeError, ValueError, OverflowError, struct.error):
            self._counts["bad_messages"] += 1

    def _take(self, data: bytes, now_ns: int) -> None:
        kind = data[:1]
        if kind == b"I":
            self._iteration(data)
        elif kind == b"G":
            for number, gpu_ns, idle_ns in GPU.iter_unpack(data[1:]):
                self._gpu_time(number, gpu_ns, idle_ns)
        elif kind == b"R":
            facts = json.loads(data[1:])
            self._shares.begin(int(facts["n"]), facts, int(facts["time_ns"]))
        elif kind == b"T":
            _, time_ns = FIRST.unpack_from(data)
            for number in array("I", data[FIRST.size :]):
                self._shares.first_token(number, time_ns)
        elif kind == b"E":
            facts = json.loads(data[1:])
            self._shares.end(int(facts["n"]), facts, int(facts["time_ns"]))
        elif kind == b"L":
            _, *lost = LOST.unpack(data)
            self._report_lost((lost[0], lost[1]), now_ns)
        elif kind == b"J":
            self._event(json.loads(data[1:]))

    def _event(self, event: dict[str, Any]) -> None:
        if event["event"] == "attached":
            self._engine, self._role = str(event["engine"]), str(event["role"])
        self._attached |= event
        if self._writer is not None:
            self._writer.identity, self._report_at = self._identity(), 0

    def _iteration(self, data: bytes) -> None:
        _, flags, phase, *numbers = ITERATION.unpack_from(data)
        number, start_ns, duration_ns, requests, prompts = *numbers[:3], *numbers[-2:]
        if not flags & SAME_BATCH:
            flat = array("I", data[ITERATION.size :])
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            if len(pairs) != requests + prompts:
                raise ValueError("an iteration of another length")
            self._shares.new_batch(pairs[:requests], dict(pairs[requests:]))
        follows = bool(flags & GPU_FOLLOWS)
        batch = self._shares.iteration(number, start_ns, duration_ns, gpu_follows=follows)
        tokens, prefill = sum(count for _, count in batch.tokens), sum(batch.prefill.values())
        row = iteration_row(self._engine, self._role, numbers, phase, duration_ns)
        row |= {"requests": requests, "prefill_requests": len(batch.prefill), "prefill_tokens": prefill,
                "decode_tokens": tokens - prefill, "adapters": batch.adapters, "waits": follows}  # fmt: skip
        self._iterations.append(row)
        if follows:
            self._by_number[number] = row

    def _gpu_time(self, number: int, gpu_ns: int, idle_ns: int) -> None:
        if row := self._by_number.pop(number, None):
            row |= {"gpu_ns": gpu_ns, "gpu_idle_ns": idle_ns, "waits": False}
        self._shares.gpu_time(number, gpu_ns)

    def tick(self, now_ns: int) -> None:
        """Write what is complete."""
        if now_ns < self._flush_at:
            return
        self._flush_at = now_ns + FLUSH_NS
        self._give_up(now_ns - GPU_NS)
        self._requests += [request_row(self._engine, request) for request in self._shares.ended(now_ns - LATE_NS)]
        self._write(now_ns)
        if self._spool is not None and self._writer is not None and now_ns >= self._report_at:
            self._report_at = now_ns + REPORT_NS
            self._spool.identify(self._record(ON))

    def finish(self, now_ns: int) -> None:
        """Write everything, and close the spool: the engine's process has ended."""
        self._give_up(now_ns)
        self._requests += [request_row(self._engine, request) for request in self._shares.finish(now_ns)]
        self._write(now_ns)
        if self._spool is not None and self._writer is not None:
            self._writer.finish(now_ns)
            self._spool.identify(self._record(ENDED))
            self._spool.close()

    def _give_up(self, before_ns: int) -> None:
        """Let iterations from before a time go without GPU time, and the oldest of too many."""
        for row in self._iterations:
            if row["start_ns"] + row["duration_ns"] >= before_ns and len(self._iterations) < MOST_ITERATIONS:
                break
            if row["waits"]:
                row["waits"] = False
                self._by_number.pop(row["iteration"], None)
                self._shares.gpu_time(row["iteration"], UNKNOWN)

    def _write(self, now_ns: int) -> None:
        ready: list[Row] = []
        while self._iterations and not self._iterations[0]["waits"]:
            ready.append(self._iterations.popleft())
        if not ready and not self._requests and self._writer is None:
            return
        writer = self._begin()
        start_ns = self._iterations[0]["start_ns"] if self._iterations else now_ns
        progress = {Topic.ITERATION: start_ns, Topic.REQUEST: self._shares.oldest_start_ns(now_ns)}
        for topic, rows in ((Topic.ITERATION, ready), (Topic.REQUEST, self._requests)):
            if rows:
                writer.write(topic, table_of(topic, rows), FeedProgress(now_ns, progress[topic]))
        self._counts["iterations"] += len(ready)
        self._counts["requests"] += len(self._requests)
        self._requests = []

    def _report_lost(self, lost: tuple[int, int], now_ns: int) -> None:
        """Publish how many iterations, and messages about requests, the engine's process could not send."""
        news = [now - before for now, before in zip(lost, self._lost, strict=True)]
        self._lost = lost
        for topic, count in zip((Topic.ITERATION, Topic.REQUEST), news, strict=True):
            if count > 0:
                self._begin().write(topic, table_of(topic, []), FeedProgress(now_ns, 0), dropped=count)

    def _begin(self) -> BatchWriter:
        """Return the writer; it begins with the first row."""
        if self._writer is None:
            try:
                limits = SpoolLimits(max_bytes=spool_bytes(self._environment))
            except ValueError:
                limits = SpoolLimits(max_bytes=spool_bytes({}))
            self._writer = BatchWriter(self._identity(), self._emit)
            self._writer.is_silent = True  # an engine may be without a request for hours
            self._spool = SpoolWriter(spool_root(self._environment), self._record(ON), limits)
        return self._writer

    def _emit(self, topic: Topic, key: str, batch: Batch) -> None:
        if self._spool is not None:
            self._spool.append_batch(key, batch)
            if self._spool.problem and not self._is_warned:
                self._is_warned = True
                warn(f"{self._spool.problem}: iterations and requests are not recorded", self._environment)

    def _identity(self) -> Identity:
        device = self._attached.get("device")
        return identity(self._environment, self._attached, device, self._began_ns, SERVING)

    def _record(self, state: str) -> dict[str, Any]:
        """Return the envelope of the process's gpu.process.v1 record."""
        assert self._writer is not None
        counts = dict(self._counts)
        counts["lost_iterations"], counts["lost_requests"] = self._lost
        counts["unknown_requests"] = self._shares.unknown
        counts["spool_dropped"] = self._spool.dropped.total() if self._spool else 0
        collector = {name: str(count) for name, count in counts.items()}
        return {**process_record(self._environment, self._writer.identity), "policy": state, "collector": collector}
