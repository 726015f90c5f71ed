"""Session of one recorded process in its decoder: handles its messages, reads its buffers, publishes its record.

buffer_reader.py turns buffers into tables; output.py turns tables into batches and appends them to the spool.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from drumline.producers.batching.process_record import ENDED, EXITED, process_record
from drumline.producers.decoder.buffer_reader import BufferReader
from drumline.producers.decoder.cupti_decode import UnknownSize
from drumline.producers.decoder.job_warnings import JobWarnings
from drumline.producers.decoder.open_marks import Mark, OpenMarks, StepNumber
from drumline.producers.decoder.output import SpoolOutput
from drumline.producers.decoder.policy_file import PolicyFile
from drumline.producers.decoder.progress_output import ProgressOutput
from drumline.producers.decoder.python_samples import is_sample
from drumline.producers.decoder.ring_source import RingSource
from drumline.producers.decoder.self_metrics import collect_metrics, session_counts
from drumline.producers.identity import Identity, identity, place
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.ipc.control import ProcessPlace
from drumline.producers.ipc.events import MARK, MARK_BEGIN, warn
from drumline.producers.ipc.policy import COUNTS, Policy
from drumline.producers.ipc.timing import HELD_NS, REQUEST_NS
from drumline.producers.spool.location import spool_bytes, spool_root
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter

#: Interval of the derivation, and of the process's record; ns.
ADVANCE_NS = 500_000_000
REPORT_NS = 10_000_000_000
#: Interval of the derivation between deep windows, when nothing is to be derived; ns.
REST_NS = 10_000_000_000
#: Interval at which the control file is read; ns.
CONTROL_NS = 250_000_000
#: Time after the end of recording until the last segment of activity is closed; ns.
CLOSE_AFTER_OFF_NS = 2 * ADVANCE_NS + 500_000_000
#: State of a process whose launches are counted while nothing records them.
COUNTED = str(Policy(COUNTS))


class Session:
    """Follows one recorded process from its decoder.

    Created and driven by decoder/main.py in the decoder's only thread: `event` per message, `tick` about 20 times a
    second, `finish` once. Writing to the spool may block on the disk.

    `pool`: the shared buffers. `problems`: errors so far, short name -> sentence; part of the process's record.
    """

    def __init__(self, pool: BufferPool, pid: int, environment: Mapping[str, str], now_ns: int) -> None:
        self.pool = pool
        self.problems: dict[str, str] = {}
        self._environment, self._began_ns = environment, now_ns
        self._reader = BufferReader(pool, pid, self.problems)
        self._policy_file = PolicyFile(environment, pool.header, self.problems)
        self._ring = RingSource(environment, pid)
        self._output: SpoolOutput | None = None
        self._progress = ProgressOutput(pool, pid, self.problems)
        self._attached: dict[str, Any] = {"pid": pid}
        self._place: ProcessPlace | None = None
        self._device: int | None = None
        self._steps, self._open_marks = StepNumber(), OpenMarks()
        self._advance_at = self._report_at = self._control_at = 0
        self._host_complete_ns, self._held_ns = now_ns - HELD_NS, 0
        self._recording = "not yet"
        self._off_at, self._is_rejected, self._counts = 0, False, False
        self._warnings = JobWarnings(environment)
        pool.header[Header.NO_KERNELS_SINCE_NS] = 0  # of a decoder that was killed
        self._windows = [(False, 0)]  # off, until an event or a record shows otherwise
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "attached": self._on_attached,
            "place": self._on_place,
            "recording": self._on_recording,
            "failed": self._on_failed,
            "problem": self._on_problem,
            "counting": self._on_counting,
            "pc_begin": self._on_pc_begin,
            "pc_samples": self._on_pc_samples,
            "pc_rejected": self._on_pc_rejected,
        }

    def event(self, message: bytes) -> None:
        """Handle a message of the collector (ipc/events.py): an event, or a mark."""
        if message[:1] == b"M" and len(message) >= MARK.size:
            _, flags, number, time_ns = MARK.unpack_from(message)
            name = message[MARK.size :].decode(errors="replace")
            if flags == MARK_BEGIN and self._steps.begin(name):
                self._progress.step_began(self._steps.number, time_ns)
            self._mark(Mark(flags, number, time_ns, name))
        elif is_sample(message):
            if self._output:
                self._output.samples.take(message)
        elif message[:1] == b"J":
            event = json.loads(message[1:])
            if handle := self._handlers.get(event["event"]):
                handle(event)

    def _mark(self, mark: Mark) -> None:
        """Take a mark; between deep windows nothing is derived from marks, and those that are open wait."""
        output = self._begin(mark.time_ns)
        if self._rests and mark.flags == MARK_BEGIN:
            self._open_marks.add(mark)
        elif not self._open_marks.end(mark.number):  # an end may be of a mark from inside the last window
            output.mark(self._reader.mark(*mark))

    def _end_rest(self) -> None:
        """Take the marks that are open, as a window begins."""
        self._advance_at = 0
        for mark in self._open_marks.take():
            self._begin(mark.time_ns).mark(self._reader.mark(*mark))

    def _on_attached(self, event: dict[str, Any]) -> None:
        self._attached, self._place = event, None
        self._policy_file.begin(event.get("policy", ""))
        if self._output:
            self._output.keeps = self._policy_file.keeps
        self._control_at = 0

    def _on_place(self, event: dict[str, Any]) -> None:
        self._attached |= event
        self._place = None
        self._update_identity()

    def _on_recording(self, event: dict[str, Any]) -> None:
        on, time_ns, reason = bool(event["on"]), int(event["time_ns"]), event["why"]
        if on and self._off_at and self._output:
            if self._off_at - REQUEST_NS <= self._host_complete_ns < self._off_at:  # no buffer is out
                self._set_host_complete(self._off_at, self._off_at)
            # Recorded windows have gaps between them: no activity reaches from one to the next.
            self._derive(self._output, time_ns, True)
        if on:
            self._end_rest()
        self._windows.append((on, time_ns))
        self._progress.recording(on, time_ns, self._attached.get("policy", ""), self._attached.get("decoders", 1))
        self._recording = f"on: {reason}" if on else f"off: {reason}"
        self._off_at = 0 if on else self._off_at or time_ns
        self._report_rejection(bool(event.get("rejected")), reason, time_ns)

    def _on_failed(self, event: dict[str, Any]) -> None:
        self.problems["collector"] = event["why"]
        self._recording = f"off: {event['why']}"
        self._progress.recording(False, int(event["time_ns"]))
        warn(f"{event['why']}: nothing is recorded any more; the job goes on", self._environment)
        self._begin(int(event["time_ns"]))
        self._report_at = 0

    def _on_problem(self, event: dict[str, Any]) -> None:
        self.problems[event["name"]] = event["why"]

    def _on_counting(self, event: dict[str, Any]) -> None:
        self._counts, self._report_at = bool(event["on"]), 0
        self.problems.pop("counts", None)
        if event["rejected"]:
            self.problems["counts"] = event["why"]
        if not (self._counts or self._recording.startswith("on")):
            self._recording = f"off: {event['why']}"
        self._begin(time.time_ns())

    def _on_pc_begin(self, event: dict[str, Any]) -> None:
        self._begin(time.time_ns()).pc_samples.begin(event)

    def _on_pc_samples(self, event: dict[str, Any]) -> None:
        self._begin(int(event["to_ns"])).pc_samples.take(event)
        self.pool.header[Header.PC_READ] += 1

    def _on_pc_rejected(self, event: dict[str, Any]) -> None:
        self._policy_file.reject(str(event["why"]))
        self.pool.header[Header.PC] = self._report_at = 0

    @property
    def is_busy(self) -> bool:
        """True while records come: CUPTI is on, or what it recorded is not derived yet."""
        return self._recording.startswith("on") or self._off_at > 0

    @property
    def _rests(self) -> bool:
        """True while only a deep window can bring rows."""
        return self._ring.is_expected and not self.is_busy

    def tick(self, now_ns: int) -> bool:
        """Read completed buffers and publish what is due. Returns whether a buffer was read."""
        read = 0
        if now_ns >= self._control_at:
            self._control_at = now_ns + CONTROL_NS
            self._place = self._place or place(self._environment, self._attached)
            if self._policy_file.refresh(self._place, now_ns, self._steps.number):
                self._report_at = 0
            if self._output:
                self._output.launches.request(self._policy_file.launches, now_ns)
            # Once kernels have shown which GPU it is: their records are on then, as CUPTI needs it.
            wants_samples = self._policy_file.pc and self._device is not None and self._recording.startswith("on")
            self.pool.header[Header.PC] = self._device + 1 if wants_samples and self._device is not None else 0
        complete_ns, self._progress.returned_ns = self.pool.host_complete_ns(now_ns), 0
        returned_ns = self.pool.host_complete_ns(now_ns, lost_ns=now_ns)
        for number in self.pool.done():
            if not self._read(number, now_ns):
                break
            read += 1
        else:
            self._set_host_complete(complete_ns, now_ns)
            self._progress.returned_ns = returned_ns
        if read:
            self._advance_at = min(self._advance_at, now_ns + ADVANCE_NS)
        if self._output and now_ns >= self._advance_at:
            self._advance_at = now_ns + (REST_NS if self._rests else ADVANCE_NS)
            self._advance(self._output, now_ns)
        if self._output:
            self._output.advance_counts(now_ns)
        if self._output and now_ns >= self._report_at:
            self._report_at = now_ns + REPORT_NS
            self._output.spool.identify(self._record(self._output.writer.identity))
        return read > 0

    def _advance(self, output: SpoolOutput, now_ns: int) -> None:
        """Derive what is complete, and answer the collector's header fields."""
        off_ns = now_ns - self._off_at
        is_complete = self._host_complete_ns >= self._off_at or off_ns > HELD_NS
        ended = self._off_at and off_ns > CLOSE_AFTER_OFF_NS and is_complete
        output.report_losses(self._reader.dropped, now_ns)
        self._derive(output, now_ns, bool(ended))
        output.launches.request(self._policy_file.launches, now_ns)
        output.advance_launches(now_ns, self._host_complete_ns, bool(ended))
        output.advance_pc_samples(now_ns, bool(ended))
        self.pool.header[Header.LAUNCHES] = output.live.wants_launches(now_ns) or self._policy_file.launches
        self.pool.header[Header.NO_KERNELS_SINCE_NS] = output.live.no_kernels_since_ns
        self._off_at = 0 if ended else self._off_at
        self._warnings.unwritable(output.spool)

    def finish(self, now_ns: int) -> None:
        """Publish everything that is left, and close the spool; the process has ended.

        Records that CUPTI held when a process was killed are lost, and their number is unknown: `policy` states it.
        """
        if not self.pool.header[Header.ENDED]:
            self._recording = EXITED
        elif self._recording.startswith("on") or self._counts:  # the event was lost
            self._recording = ENDED
        self._counts = False
        while self.pool.done() and self.tick(now_ns):
            pass
        self._policy_file.end()
        lost = len(self.pool.done())
        if lost:
            self.problems["unread"] = f"{lost} buffers could not be read"
        elif not self.pool.has_outstanding(now_ns):
            self._set_host_complete(now_ns, now_ns)
        if self._output:
            self._output.report_losses(self._reader.dropped, now_ns)
            if not self._output.live.has_ring:
                self._progress.finish(self._output.writer, now_ns)
            self._derive(self._output, now_ns, True)
            self._output.advance_launches(now_ns, now_ns, True)
            self._output.advance_pc_samples(now_ns, True)
            self._output.advance_counts(now_ns, True)
            self._output.writer.finish(now_ns)
            self._output.spool.identify(self._record(self._output.writer.identity))
            self._output.spool.close()
            self._warnings.unwritable(self._output.spool)

    def _read(self, number: int, now_ns: int) -> bool:
        """Decode one buffer and give it back. Returns False while the size of a record kind is missing."""
        try:
            decoded = self._reader.read(number, now_ns, self._recording.startswith("on"))
        except UnknownSize:
            return False
        if decoded is not None and self._device is None and decoded.kernels.rows:
            self._device = int(np.bincount(decoded.kernels["device"]).argmax())
            self._update_identity()
        if self._recording == "not yet" and not (decoded and decoded.only_peers):  # the event was lost
            self._recording = "on: records come"
            self._end_rest()
            self._windows.append((True, now_ns))
            self._progress.recording(True, now_ns)
        output = self._begin(now_ns)
        output.report_losses(self._reader.dropped, now_ns)
        if decoded is not None:
            if decoded.kernels.rows and decoded.kernels["graph"].any():
                self.pool.header[Header.GRAPHS] = 1
            output.take(number, decoded, now_ns)
            if not output.live.has_ring:
                self._progress.take(decoded, now_ns)
        if decoded is None or decoded.invalid["kernels"]:
            output.unread(now_ns)
            self._progress.calls.lost()
        self._warnings.unreadable(self.problems)
        self.pool.give_back(number)
        return True

    def _set_host_complete(self, complete_ns: int, now_ns: int) -> None:
        """Set the time before which all host activity has been read; 0 = unknown now. All done buffers are read."""
        if complete_ns:
            self._host_complete_ns, self._held_ns = complete_ns, max(self._held_ns, now_ns - complete_ns)
        if self._output:
            self._output.live.complete_until_ns = self._host_complete_ns

    def _derive(self, output: SpoolOutput, now_ns: int, final: bool) -> None:
        """Derive ranges, and of a process without a ring steps, collectives and progress too.

        A segment that fails is given up; kernels are still published.
        """
        output.live.has_ring = self._ring.is_used()
        # Between deep windows; those downstream close once a process is silent.
        output.writer.is_silent = self._rests
        if not output.live.has_ring:
            self._progress.write(output.writer, now_ns)  # before heartbeats, of which it then needs none
        for on, time_ns in self._windows:
            output.live.recording(on, time_ns)
        self._windows.clear()
        try:
            output.live.advance(now_ns, final)
        except Exception as error:
            self.problems["derive"] = f"{type(error).__name__}: {error}"
            output.live.give_up(now_ns)

    def _begin(self, now_ns: int) -> SpoolOutput:
        """Return the output, created with the first data: then the process's identity is known."""
        if self._output is None:
            process, root = self._identity(), spool_root(self._environment)
            try:
                max_bytes = spool_bytes(self._environment)
            except ValueError as error:
                self.problems["settings"] = str(error)
                max_bytes = spool_bytes({})
            spool = SpoolWriter(root, self._record(process), SpoolLimits(max_bytes=max_bytes))
            self._output = SpoolOutput(self.pool, spool, process, self._reader.memory)
            self._output.keeps = self._policy_file.keeps
            self._output.launches.request(self._policy_file.launches, now_ns)  # the first buffer may have some
            self._output.live.complete_until_ns = self._host_complete_ns
            self._warnings.unwritable(spool)
            if self._attached.get("decoders", 1) > 1:  # calls of the decoder before have their kernels in buffers now
                self._output.live.give_up(now_ns)
            self._report_at = now_ns + REPORT_NS
        return self._output

    def _identity(self) -> Identity:
        return identity(self._environment, self._attached, self._device, self._began_ns)

    def _update_identity(self) -> None:
        """Use the identity as it is known now for what is written from now on."""
        if self._output:
            self._output.writer.identity, self._report_at = self._identity(), 0

    def _report_rejection(self, rejected: bool, reason: str, now_ns: int) -> None:
        """Publish a process whose recording CUPTI rejects, which may never have data, and warn once."""
        if rejected and not self._is_rejected:
            warn(f"{reason}: nothing is recorded until it can be; the job goes on", self._environment)
        if rejected != self._is_rejected:
            self._is_rejected, self._report_at = rejected, 0
            self._begin(now_ns)

    def _record(self, process: Identity) -> dict[str, Any]:
        """Return the envelope of the process's gpu.process.v1 record."""
        counts = session_counts(self._reader, self._output, self._held_ns)
        return {
            **process_record(self._environment, process),
            "policy": COUNTED if self._counts and not self._recording.startswith("on") else self._recording,
            "collector": {
                **collect_metrics(self.pool.header, counts, self.problems, self._began_ns),
                **({"control": self._policy_file.answer} if self._policy_file.answer else {}),
            },
        }
