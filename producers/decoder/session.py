"""One recorded process, seen from its decoder: what it says, what is due when, and the record of how it went.

Buffers become tables in buffer_reader.py; tables become batches, and these go into its spool, in spooling.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batches.process_record import process_record
from drumline.producers.collector.attach import MARK, say
from drumline.producers.decoder.buffer_reader import BufferReader
from drumline.producers.decoder.cupti_decode import UnknownSize
from drumline.producers.decoder.output import SpoolOutput
from drumline.producers.decoder.policy_file import PolicyFile
from drumline.producers.decoder.self_metrics import cost
from drumline.producers.identity import Identity, identity, spool_limits, spool_root
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import HELD_NS, REQUEST_NS, BufferPool
from drumline.producers.spool.writer import SpoolWriter

#: How often steps are looked for, and how often the process's record says what collecting costs; ns.
ADVANCE_NS = 500_000_000
REPORT_NS = 10_000_000_000
#: How often the control file is looked at; ns.
CONTROL_NS = 1_000_000_000


class Session:
    """`problems`: what went wrong so far, short name -> sentence."""

    def __init__(self, pool: BufferPool, pid: int, environment: Mapping[str, str], now_ns: int) -> None:
        self.pool = pool
        self.problems: dict[str, str] = {}
        self._environment, self._began = environment, now_ns
        self._reader = BufferReader(pool, pid, self.problems)
        self._control = PolicyFile(environment, pool.words, self.problems)
        self._spooling: SpoolOutput | None = None
        self._attached: dict[str, Any] = {"pid": pid}
        self._device: int | None = None
        self._advance_at = self._report_at = self._control_at = 0
        self._here_ns, self._held_ns = now_ns - HELD_NS, 0
        self._recording = "not yet"
        self._off_at, self._refusal = 0, False
        self._unwritten = self._unreadable = False
        pool.words[pool_words.BLIND_NS] = 0  # of a decoder that was killed
        self._windows = [(False, 0)]  # until it is said that it is recorded, it is not

    def event(self, message: bytes) -> None:
        """Something the process said: an event, or a step or scope of the API."""
        if message[:1] == b"M" and len(message) >= MARK.size:
            _, flags, number, time_ns = MARK.unpack_from(message)
            marker = self._reader.mark(flags, number, time_ns, message[MARK.size :].decode(errors="replace"))
            self._begin(time_ns).live.add(Table({}), Table({}), marker, Table({}))
        elif message[:1] == b"J":
            event = json.loads(message[1:])
            if event["event"] == "attached":
                self._attached = event
                self._control.begin(event.get("policy", ""))
            elif event["event"] == "place":
                self._attached |= event
                self._identify()
            elif event["event"] == "recording":
                if event["on"] and self._off_at and self._spooling:
                    if self._off_at - REQUEST_NS <= self._here_ns < self._off_at:  # nothing is out
                        self._here(self._off_at, self._off_at)
                    # Windows are apart: nothing reaches from one to the next.
                    self._derive(self._spooling, int(event["time_ns"]), True)
                self._windows.append((bool(event["on"]), int(event["time_ns"])))
                self._recording = f"on: {event['why']}" if event["on"] else f"off: {event['why']}"
                self._off_at = 0 if event["on"] else self._off_at or int(event["time_ns"])
                self._held(bool(event.get("refused")), event["why"], int(event["time_ns"]))
            elif event["event"] == "failed":
                self.problems["collector"] = event["why"]
                self._recording = f"off: {event['why']}"
                say(f"{event['why']}: nothing is recorded any more; the job goes on", self._environment)
                self._begin(int(event["time_ns"]))
                self._report_at = 0
            elif event["event"] == "problem":
                self.problems[event["name"]] = event["why"]

    def turn(self, now_ns: int) -> bool:
        """Read what is completed, publish what is due. True when there was something to read."""
        read = 0
        if now_ns >= self._control_at:
            self._control_at = now_ns + CONTROL_NS
            if self._control.refresh():
                self._report_at = 0
        here = self.pool.here_ns(now_ns)
        for number in self.pool.done():
            if not self._read(number, now_ns):
                break
            read += 1
        else:
            self._here(here, now_ns)
        if self._spooling and now_ns >= self._advance_at:
            self._advance_at = now_ns + ADVANCE_NS
            off_ns = now_ns - self._off_at
            all_here = self._here_ns >= self._off_at or off_ns > HELD_NS
            ended = self._off_at and off_ns > 2 * ADVANCE_NS + 500_000_000 and all_here
            self._spooling.report_losses(self._reader.dropped, now_ns)
            self._derive(self._spooling, now_ns, bool(ended))
            self.pool.words[pool_words.LAUNCHES] = self._spooling.live.wants_launches(now_ns)
            self.pool.words[pool_words.BLIND_NS] = self._spooling.live.no_kernels_since_ns
            self._off_at = 0 if ended else self._off_at
            self._watch(self._spooling.spool)
        if self._spooling and now_ns >= self._report_at:
            self._report_at = now_ns + REPORT_NS
            self._spooling.spool.identify(self._record(self._spooling.writer.identity))
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
        elif not self.pool.lent(now_ns):
            self._here(now_ns, now_ns)
        if self._spooling:
            self._spooling.report_losses(self._reader.dropped, now_ns)
            self._derive(self._spooling, now_ns, True)
            self._spooling.writer.finish(now_ns)
            self._spooling.spool.identify(self._record(self._spooling.writer.identity))
            self._spooling.spool.close()
            self._watch(self._spooling.spool)

    def _read(self, number: int, now_ns: int) -> bool:
        """Decode one buffer and give it back. False where it must wait for the size of a kind of record."""
        try:
            found = self._reader.read(number, now_ns)
        except UnknownSize:
            return False
        if found is not None and self._device is None and found.kernels.rows:
            self._device = int(np.bincount(found.kernels["device"]).argmax())
            self._identify()
        if self._recording == "not yet" and not (found and found.only_peers):  # the event was lost
            self._recording = "on: records come"
            self._windows.append((True, now_ns))
        spooling = self._begin(now_ns)
        spooling.report_losses(self._reader.dropped, now_ns)
        if found is not None:
            spooling.take(number, found, now_ns)
        if found is None or found.invalid["kernels"]:
            spooling.unread(now_ns)
        why = [self.problems[name] for name in ("decode", "size", "layout") if name in self.problems]
        if why and not self._unreadable:
            self._unreadable = True
            say(f"records cannot be read, they are counted: {why[0]}", self._environment)
        self.pool.give_back(number)
        return True

    def _here(self, here_ns: int, now_ns: int) -> None:
        """All that was completed was read: what the host did before `here_ns` is here; 0 = nobody knows right now."""
        if here_ns:
            self._here_ns, self._held_ns = here_ns, max(self._held_ns, now_ns - here_ns)
        if self._spooling:
            self._spooling.live.complete_until_ns = self._here_ns

    def _derive(self, spooling: SpoolOutput, now_ns: int, final: bool) -> None:
        """Steps, collectives and ranges. A stretch that cannot be derived is given up; kernels go on."""
        for on, time_ns in self._windows:
            spooling.live.recording(on, time_ns)
        self._windows.clear()
        try:
            spooling.live.advance(now_ns, final)
        except Exception as error:
            self.problems["derive"] = f"{type(error).__name__}: {error}"
            spooling.live.give_up(now_ns)

    def _begin(self, now_ns: int) -> SpoolOutput:
        """With the first data: who the process is is known now."""
        if self._spooling is None:
            who, root = self._identity(), spool_root(self._environment)
            try:
                most, segment_s = spool_limits(self._environment)
            except ValueError as error:
                self.problems["settings"] = str(error)
                most, segment_s = spool_limits({})
            spool = SpoolWriter(root, self._record(who), max_bytes=most, segment_s=segment_s)
            self._spooling = SpoolOutput(self.pool, spool, who)
            self._spooling.live.complete_until_ns = self._here_ns
            self._watch(spool)
            if self._attached.get("decoders", 1) > 1:  # the one before had calls whose kernels come now
                self._spooling.live.give_up(now_ns)
            self._report_at = now_ns + REPORT_NS
        return self._spooling

    def _identity(self) -> Identity:
        return identity(self._environment, self._attached, self._device, self._began)

    def _identify(self) -> None:
        """Who the process is, once more: what comes from now on says so."""
        if self._spooling:
            self._spooling.writer.identity, self._report_at = self._identity(), 0

    def _held(self, refused: bool, why: str, now_ns: int) -> None:
        """A process that CUPTI refuses may never have data: it is in the spool nevertheless, with the reason, which is
        said on stderr too. Asked again and again, it is told once."""
        if refused and not self._refusal:
            say(f"{why}: nothing is recorded until it can be; the job goes on", self._environment)
        if refused != self._refusal:
            self._refusal, self._report_at = refused, 0
            self._begin(now_ns)

    def _watch(self, spool: SpoolWriter) -> None:
        """What cannot be written cannot tell of itself: said once in a process's life."""
        if spool.problem and not self._unwritten:
            self._unwritten = True
            root = spool_root(self._environment)
            say(f"{spool.problem}: nothing is recorded in {root} until it can be written", self._environment)

    def _record(self, who: Identity) -> dict[str, Any]:
        """The envelope of the process's gpu.process.v1 record."""
        counts: dict[str, float] = dict(self._reader.records)
        counts["bytes"] = self._reader.bytes
        if self._spooling:
            spool = self._spooling.spool
            counts["spool_bytes"], counts["spool_dropped"] = spool.bytes, spool.dropped.total()
        counts["unreadable_strings"] = self._reader.unreadable_strings
        counts.update(self._spooling.live.counts if self._spooling else {})
        counts["held_max_s"] = self._held_ns / 1e9
        return {
            **process_record(self._environment, who),
            "policy": self._recording,
            "collector": cost(self.pool.words, counts, self.problems, self._began),
        }
