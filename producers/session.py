"""One recorded process, seen from its decoder: completed buffers in, batches into the spool.

The work is in cupti_decode.py (bytes to columns), live.py (columns to steps and collectives) and outbox.py (batches).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from drumline.producers import buffer_pool as pool_words
from drumline.producers import cupti_layout, nccl
from drumline.producers.attach import MARK
from drumline.producers.batching import MAX_ROWS
from drumline.producers.buffer_pool import BufferPool
from drumline.producers.collecting_cost import cost
from drumline.producers.cupti_decode import Decoded, Decoder, UnknownSize, find_records
from drumline.producers.live import Live
from drumline.producers.outbox import Outbox
from drumline.producers.policy import COLLECTIVES, BadPolicy, parse, written
from drumline.producers.remote_memory import RemoteMemory
from drumline.producers.spool import Spool
from drumline.producers.table import Table
from drumline.producers.who import control_file, identity, process_record, spool_limits, spool_root
from drumline.schemas.batch import Batch, encode
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: How often steps are looked for, and how often the process's record says what collecting costs; ns.
ADVANCE_NS = 500_000_000
REPORT_NS = 10_000_000_000
#: The dead-end for a kind whose size CUPTI does not tell (the process died before it was asked); ns.
SIZE_NS = 3_000_000_000
#: How often the control file is looked at; ns.
CONTROL_NS = 1_000_000_000
#: NVTX domain of the API's own steps and scopes.
DOMAIN = "drumline"


class Session:
    """`records`: decoded so far, by kind of table; `dropped`: rows lost, by topic, and not yet told."""

    def __init__(self, pool: BufferPool, pid: int, environment: Mapping[str, str], now_ns: int) -> None:
        self.pool, self.records = pool, Counter[str]()
        self.dropped: Counter[Topic] = Counter()
        self.problems: dict[str, str] = {}
        self._environment, self._pid = environment, pid
        self._decoder = Decoder(RemoteMemory(pid))
        self._attached: dict[str, Any] = {"pid": pid}
        self._began = now_ns
        self._spool: Spool | None = None
        self._live: Live | None = None
        self._device: int | None = None
        self._advance_at = self._report_at = self._stuck_since = self._control_at = 0
        self._own = self._control = ""
        self._recording = "not yet"
        self._off_at, self._refusal = 0, False
        self._windows: list[tuple[bool, int]] = []
        self._bytes = self._refused = self._events_lost = 0
        self._reading = -1

    def event(self, message: bytes) -> None:
        """Something the process said: an event, or a step or scope of the API."""
        if message[:1] == b"M" and len(message) >= MARK.size:
            _, flags, number, time_ns = MARK.unpack_from(message)
            self._mark(flags, number, time_ns, message[MARK.size :].decode(errors="replace"))
        elif message[:1] == b"J":
            event = json.loads(message[1:])
            if event["event"] == "attached":
                self._attached = event
                self._own = self._control = event.get("policy", "")
            elif event["event"] == "place":
                self._attached |= event
                self._identify()
            elif event["event"] == "recording":
                if event["on"] and self._off_at and self._live:
                    self._derive(int(event["time_ns"]), True)  # windows are apart: nothing reaches from one to the next
                self._windows.append((bool(event["on"]), int(event["time_ns"])))
                self._recording = f"on: {event['why']}" if event["on"] else f"off: {event['why']}"
                self._off_at = 0 if event["on"] else int(event["time_ns"])
                self._held(bool(event.get("refused")), event["why"], int(event["time_ns"]))
            elif event["event"] == "failed":
                self.problems["collector"] = event["why"]

    def turn(self, now_ns: int) -> bool:
        """Read what is completed, publish what is due. True when there was something to read."""
        read = 0
        if now_ns >= self._control_at:
            self._control_at = now_ns + CONTROL_NS
            self._obey()
        for number in self.pool.done():
            if not self._read(number, now_ns):
                break
            read += 1
        if self._live and now_ns >= self._advance_at:
            self._advance_at = now_ns + ADVANCE_NS
            ended = self._off_at and now_ns - self._off_at > 2 * ADVANCE_NS + 500_000_000
            self._tell_losses(now_ns)
            self._derive(now_ns, bool(ended))
            self.pool.words[pool_words.LAUNCHES] = self._live.asks(now_ns)
            self._off_at = 0 if ended else self._off_at
        if self._spool and now_ns >= self._report_at:
            self._report_at = now_ns + REPORT_NS
            self._spool.identify(self._record())
        return read > 0

    def finish(self, now_ns: int) -> None:
        """The process has ended: everything that is left, and the last word. What CUPTI held when it was killed is
        gone, and nobody knows how much that was: `policy` says so."""
        if not self.pool.words[pool_words.ENDED]:
            self._recording = "off: the process ended without a word"
        elif self._recording.startswith("on"):  # the event was lost
            self._recording = "off: end of the process"
        while self.pool.done() and self.turn(now_ns):
            pass
        lost = sum(1 for _ in self.pool.done())
        if lost:
            self.problems["unread"] = f"{lost} buffers could not be read"
        if self._live:
            self._tell_losses(now_ns)
            self._derive(now_ns, True)
            self._outbox.finish(now_ns)
        if self._spool:
            self._spool.identify(self._record())
            self._spool.close()

    def _obey(self) -> None:
        """The policy in the control file, when that changes; without one, the process's own."""
        try:
            text = written(control_file(self._environment)) or self._own
        except OSError as error:
            self.problems["control"] = str(error)
            return
        if text != self._control:
            self._control, self._report_at = text, 0
            try:
                policy = parse(text)
            except BadPolicy as error:
                self.problems["control"] = str(error)
                return
            self.problems.pop("control", None)
            words = self.pool.words
            words[pool_words.WINDOW_NS], words[pool_words.PERIOD_NS] = policy.window_ns, policy.period_ns
            words[pool_words.MODE] = policy.mode

    def _derive(self, now_ns: int, final: bool) -> None:
        """Steps, collectives and ranges. A stretch that cannot be derived is given up; kernels go on."""
        assert self._live is not None
        for on, time_ns in self._windows:
            self._live.recording(on, time_ns)
        self._windows.clear()
        try:
            self._live.advance(now_ns, final)
        except Exception as error:
            self.problems["derive"] = f"{type(error).__name__}: {error}"
            self._live.give_up(now_ns)

    def _read(self, number: int, now_ns: int) -> bool:
        """Decode one buffer and give it back. False where it must wait for the size of a kind of record."""
        words = self.pool.words
        sizes = words[pool_words.SIZES : pool_words.SIZES + pool_words.KINDS].tolist()
        view = self.pool.valid(number)
        data = np.frombuffer(view, np.uint8)
        try:
            found = self._decoder.decode(data, sizes)
        except UnknownSize as unknown:
            words[pool_words.WANTED_KIND] = unknown.kind
            self._stuck_since = self._stuck_since or now_ns
            if now_ns - self._stuck_since < SIZE_NS:
                return False
            self.problems["size"] = f"{unknown}; what is behind it is lost"
            self.dropped[Topic.KERNEL] += max(1, (len(view) - unknown.at) // 216)
            found = None
        except Exception as error:
            self.problems["decode"] = f"{type(error).__name__}: {error}"
            records = find_records(data, sizes)  # what went wrong comes after this
            self.dropped[Topic.KERNEL] += records.count(cupti_layout.KERNEL)
            self.dropped[Topic.MEMCPY] += records.count(cupti_layout.MEMCPY) + records.count(cupti_layout.MEMSET)
            found = None
        self._stuck_since = 0
        self._bytes += len(view)
        del view, data
        if found is not None:
            for kind, count in found.unknown.items():
                name = cupti_layout.LAYOUTS[kind].struct if kind in cupti_layout.LAYOUTS else str(kind)
                self.problems["layout"] = (
                    f"records of {sizes[kind]} bytes for {name}: this CUPTI is newer than drumline"
                )
                if kind != cupti_layout.DRIVER:  # no row would have come of it
                    self.dropped[Topic.KERNEL if kind == cupti_layout.KERNEL else Topic.MEMCPY] += count
            self.dropped[Topic.KERNEL] += found.invalid.get("kernels", 0)
            self.dropped[Topic.MEMCPY] += found.invalid.get("copies", 0)
            self._take(number, found, now_ns)
        self.pool.give_back(number)
        return True

    def _take(self, number: int, found: Decoded, now_ns: int) -> None:
        kernels, copies = found.kernels, found.copies
        for name in ("kernels", "copies", "markers", "payloads"):
            self.records[name] += getattr(found, name).rows
        if found.launched.rows:
            self.records["launches"] += found.launched.rows
        if self._device is None and kernels.rows:
            self._device = int(np.bincount(kernels["device"]).argmax())
            self._identify()
        live = self._begin(now_ns)
        self._tell_losses(now_ns)
        published = kernels
        if self.pool.words[pool_words.MODE] == COLLECTIVES and kernels.rows:
            published = kernels.take(nccl.is_kernel(kernels.words["names"])[kernels["name"]])
        before = self.pool.sent(number)
        self._reading = number
        for topic, table in ((Topic.KERNEL, published), (Topic.MEMCPY, copies)):
            gone = min(before, -(-table.rows // MAX_ROWS))  # sent by a decoder that was killed
            before -= gone
            if table.rows > gone * MAX_ROWS:
                left = np.argsort(table["start_ns"], kind="stable")[gone * MAX_ROWS :]  # as the outbox cuts them
                self._outbox.put(topic, table.take(left), live.watermark(now_ns), now_ns)
        self._reading = -1
        live.add(kernels, copies, found.markers, found.payloads, found.launched)

    def _mark(self, flags: int, number: int, time_ns: int, name: str) -> None:
        labels, domains = self._decoder.labels, self._decoder.domains
        columns: dict[str, Array] = {
            "id": np.array([number], np.uint32),
            "time_ns": np.array([time_ns], np.int64),
            "flags": np.array([flags], np.int32),
            "name": np.array([labels.index(name)], np.uint32),
            "domain": np.array([domains.index(DOMAIN)], np.uint32),
        }
        words = {"names": labels.words, "domains": domains.words}
        self._begin(time_ns).add(Table({}), Table({}), Table(columns, words), Table({}))

    def _identify(self) -> None:
        """Who the process is, once more: what comes from now on says so."""
        if self._live:
            self._who = identity(self._environment, self._attached, self._device, self._began)
            self._outbox.identity, self._report_at = self._who, 0

    def _held(self, refused: bool, why: str, now_ns: int) -> None:
        """A process that CUPTI refuses may never have data: it is in the spool nevertheless, with the reason, which is
        said on stderr too. Asked again and again, it is told once."""
        if refused and not self._refusal:
            self._say(f"{why}: nothing is recorded until it can be; the job goes on")
        if refused != self._refusal:
            self._refusal, self._report_at = refused, 0
            self._begin(now_ns)

    def _say(self, text: str) -> None:
        if self._environment.get("DRUMLINE_QUIET") != "1":
            print(f"drumline: {text}", file=sys.stderr, flush=True)

    def _begin(self, now_ns: int) -> Live:
        """With the first data: who the process is is known now."""
        if self._live is None:
            self._who = identity(self._environment, self._attached, self._device, self._began)
            root = spool_root(self._environment)
            try:
                most, segment_s = spool_limits(self._environment)
            except ValueError as error:
                self.problems["settings"] = str(error)
                most, segment_s = spool_limits({})
            self._spool = Spool(root, self._record(), max_bytes=most, segment_s=segment_s)
            if self._spool.problem:
                self._say(f"{self._spool.problem}: nothing is recorded in {root} until it can be written")
            self._outbox = Outbox(self._who, self._emit)
            self._live = Live(self._outbox)
            if self._attached.get("decoders", 1) > 1:  # the one before had calls whose kernels come now
                self._live.give_up(now_ns)
            self._report_at = now_ns + REPORT_NS
        return self._live

    def _emit(self, topic: Topic, key: str, batch: Batch) -> None:
        assert self._spool is not None
        self._spool.append(str(topic), key, encode(model(topic), batch), batch.rows)
        if self._reading >= 0:
            self.pool.count_sent(self._reading)

    def _tell_losses(self, now_ns: int) -> None:
        """Rows that CUPTI or we dropped go into `dropped_before`; CUPTI does not say of what kind: kernels, mostly."""
        total, refused = (self.pool.words[word] for word in (pool_words.CUPTI_DROPPED, pool_words.REFUSED))
        if refused > self._refused:  # CUPTI got no buffer: it drops what comes now, and says so later
            self._refused = refused
            self._begin(now_ns).lost(now_ns)
        if self.pool.words[pool_words.EVENTS_LOST] > self._events_lost:
            self._events_lost = self.pool.words[pool_words.EVENTS_LOST]
            self._begin(now_ns).marks_lost(now_ns)
        self.dropped[Topic.KERNEL] += total - self.pool.words[pool_words.TOLD]
        self.pool.words[pool_words.TOLD] = total
        for topic, rows in self.dropped.items():
            if rows:
                nothing = Table({"start_ns": np.empty(0, np.int64)})
                mark = self._begin(now_ns).watermark(now_ns)
                self._outbox.put(topic, nothing, mark, now_ns, dropped=rows)
                self._begin(now_ns).lost(now_ns)
                self.dropped[topic] = 0

    def _record(self) -> dict[str, Any]:
        counts = dict(self.records)
        counts["bytes"] = self._bytes
        if self._spool:
            counts["spool_bytes"], counts["spool_dropped"] = self._spool.bytes, self._spool.dropped.total()
        counts["unreadable_strings"] = self._decoder.names.unreadable + self._decoder.labels.unreadable
        counts.update(self._live.counts if self._live else {})
        return {
            **process_record(self._environment, self._who),
            "policy": self._recording,
            "collector": cost(self.pool.words, counts, self.problems, self._began),
        }
