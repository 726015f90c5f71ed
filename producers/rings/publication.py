"""One process's ring on its way into a spool, from where the agent publishes it like any other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from drumline.infra.telemetry import metrics
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.host.targets import RingWriter, start_ticks
from drumline.producers.identity import Identity
from drumline.producers.ipc.control import ProcessPlace
from drumline.producers.nccl_profiler.library import TIMED_INTERFACE
from drumline.producers.rings.checkpoint import Checkpoint, SpoolFrame
from drumline.producers.rings.identity_of_ring import ring_identity, ring_record
from drumline.producers.rings.process_state import process_state
from drumline.producers.rings.progress import NO_ANSWER, RasAnswer, progress_table
from drumline.producers.rings.ring_file import COMM, MAX_COMMS, BadRing, HeaderField, RingFile, RingHeader
from drumline.producers.rings.ring_rows import RingDerivation
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch, encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Interval of the process's record; ns.
REPORT_NS = 10_000_000_000
#: Time without a call, an end or a mark after which a process is asked about; ns.
STILL_NS = 2_000_000_000
#: What a process's identity has from its communicators and NVML; the same ones may be gone later.
_LEARNED = ("rank", "world_size", "gpu_uuid", "gpu_model")
OpenSpool = Callable[[Mapping[str, Any], tuple[str, int]], SpoolWriter]
#: Process -> uuid and model of its GPU, as NVML knows it.
Gpus = Mapping[int, Mapping[str, str]]
#: Returns what became of what is asked of a process, from its identity and its environment.
Answer = Callable[[Identity, Mapping[str, str]], str]


class RingProcess:
    """Reads one ring. RingFolder owns it, in the agent's thread.

    A round publishes what has become complete: it saves the state and the batches, appends the batches to the spool,
    and only then lets the process use the records again. `open_spool`: creates a process's spool. `gpus`: of
    this host's processes; another thread adds to it, as to `ras`, what NCCL's RAS stated, by process id.

    `finished`: all is in the spool, and the process has ended. `behind`: records that are not published yet.
    `is_still`: the process neither called nor ended an operation in the last seconds.
    """

    def __init__(
        self,
        ring: RingFile,
        checkpoint: Checkpoint,
        open_spool: OpenSpool,
        gpus: Gpus,
        answer: Answer = lambda process, environment: "",
        ras: Mapping[str, RasAnswer] = MappingProxyType({}),
    ) -> None:
        self._answer, self._answered = answer, ""
        self.ring, self._checkpoint, self._open_spool, self._gpus = ring, checkpoint, open_spool, gpus
        self._ras = ras
        self._frames: list[SpoolFrame] = []
        self._spool: SpoolWriter | None = None
        self._derivation: RingDerivation | None = None
        self._communicators = np.zeros(MAX_COMMS, COMM)
        self._report_at = self._lost_state = 0
        self.finished, self.is_still, self.behind = False, False, 0
        self._untimed_steps = self._times_until_ns = 0
        self._state, self._saved, self._saved_position = RingState(), "", 0
        self._restore()
        self._counted = self._counts(self.ring.header())

    def _restore(self) -> None:
        """Go on where a killed agent was. Raises OSError, BadRing."""
        header = self.ring.header()
        saved = self._checkpoint.load()
        if saved is None:
            self._lost_state = self._state.position = header[HeaderField.READ]
            self._state.dropped_seen = header[HeaderField.DROPPED] if self._lost_state else 0
            self._state.uncounted = self._lost_state > 0
            return
        try:
            folder, segment = saved[0]["spool"]
            self._lost_state, resumed = int(saved[0]["lost_state"]), (str(folder), int(segment))
            self._begin(header, resumed)
            self._go_back_to(json.dumps(saved[0]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadRing(f"{self.ring.name}: its state cannot be read ({type(error).__name__})") from None
        self._append(saved[1])

    def _go_back_to(self, saved: str) -> None:
        """Forget what is not saved. Raises KeyError, TypeError, ValueError for what no agent saved."""
        values = json.loads(saved)
        assert self._derivation is not None
        self._frames, self._saved = [], saved
        self._state = self._derivation.state = RingState.from_json(values["state"])
        self._saved_position = self._state.position
        writer = self._derivation.writer
        writer.restore(values["feeds"])
        writer.identity = replace(writer.identity, **{name: values["process"][name] for name in _LEARNED})

    def round(self, now_ns: int) -> None:
        """Publish what is complete. Raises OSError, and BadRing where the file was damaged."""
        try:
            self._round(now_ns)
        except OSError:  # what was not saved is derived again
            if self._saved:
                self._go_back_to(self._saved)
            raise

    def _round(self, now_ns: int) -> None:
        ended = self.ring.process_ended()  # before the header is read: nothing is written later
        header, state = self.ring.header(), self._state
        self._untimed_steps = header[HeaderField.UNTIMED_STEPS]
        written = header[HeaderField.WRITTEN]
        if not 0 <= written - state.position <= self.ring.capacity:
            raise BadRing(f"{self.ring.name} states {written} records, {state.position} of them read: it was damaged")
        records = self.ring.records(state.position, written)
        if header[HeaderField.COMMS]:
            self._communicators = self.ring.communicators()
        whole = state.position + len(records) == written
        if self._derivation is None and len(records):
            self._begin(header, ("", 0))
        if self._derivation is not None and self._spool is not None:
            if 0 < header[HeaderField.INTERFACE] < TIMED_INTERFACE:
                state.position += len(records)
            else:
                dropped = header[HeaderField.DROPPED]
                tight = written - state.position > self.ring.capacity // 2
                base_ns = time.time_ns() - time.monotonic_ns()
                has_ticks = header[HeaderField.GPU_TICKS] == 1
                view = RingView(
                    records, self._communicators, now_ns, dropped, ended and whole, tight, not whole, base_ns, has_ticks
                )
                if whole:
                    self._write_progress(view, header)
                self._derivation.advance(view)
            if ended and whole:
                self._derivation.writer.finish(now_ns, state.last.number if state.last else -1)
            self._commit(self._spool)
            self._report(header, now_ns, final=ended and whole)
        self.behind = written - state.position
        self.finished = ended and whole

    def _write_progress(self, view: RingView, header: RingHeader) -> None:
        """Publish how far the process is, before the other rows: then all that is not published is in the view."""
        assert self._derivation is not None
        state = process_state(self.ring, header, view.ended, self.is_still)
        table = progress_table(view, self._state, state, self._ras.get(self.process_id, NO_ANSWER))
        self.is_still = table.rows > 0 and int(table["quiet_ns"][0]) > STILL_NS
        if table.rows:
            self._derivation.writer.write(Topic.PROGRESS, table, FeedProgress(view.now_ns, 0))

    def remove(self, directory: int) -> None:
        """Delete ring and checkpoint: all is in the spool. Raises OSError."""
        self.ring.delete(directory)
        self._checkpoint.remove()

    def close(self) -> None:
        """Close the files."""
        if self._spool is not None:
            self._spool.close()
        self.ring.close()

    def _begin(self, header: RingHeader, resumed: tuple[str, int]) -> None:
        if header[HeaderField.COMMS]:
            self._communicators = self.ring.communicators()
        process = ring_identity(header, self._communicators, self._lost_state, self._gpu())
        writer = BatchWriter(process, self._emit)
        self._derivation = RingDerivation(writer, self._state)
        self._spool = self._open_spool(ring_record(process, header, self._state), resumed)

    @property
    def process_id(self) -> str:
        """Return the id under which its rows are published; "" before the first."""
        return "" if self._derivation is None else self._derivation.writer.identity.process_id

    def request_times(self, until_ns: int) -> None:
        """Ask the process for all its steps until a time, once; ns since the epoch. Raises OSError."""
        if until_ns > self._times_until_ns:
            self.ring.request_times(until_ns)
            self._times_until_ns = until_ns

    @property
    def place(self) -> ProcessPlace | None:
        """Return the process as requests name it, if only a part of its steps or transfers is recorded, else None."""
        if self._derivation is None or not (self._untimed_steps or self._state.counts["transfers"]):
            return None
        process = self._derivation.writer.identity
        return ProcessPlace(process.job, process.run, process.rank, process.host)

    @cached_property
    def writer(self) -> RingWriter | None:
        """Return the process that writes the ring; None = not known. Its number may be another's once it has ended."""
        with suppress(OSError):
            if pid := self.ring.process():
                return RingWriter(pid, self.ring.about.st_uid, start_ticks(Path(f"/proc/{pid}")))
        return None

    def _gpu(self) -> Mapping[str, str]:
        return self._gpus.get(self.ring.process(), {}) if self._gpus else {}

    def _emit(self, topic: Topic, key: str, batch: Batch) -> None:
        self._frames.append(SpoolFrame(str(topic), key, encode(model(topic), batch), batch.rows))

    def _commit(self, spool: SpoolWriter) -> None:
        """Move the batches of a round into the spool, so that none is lost or doubled wherever the agent is killed."""
        assert self._derivation is not None
        frames, self._frames = self._frames, []
        if not frames and self._saved and self._state.position == self._saved_position:
            return
        values = {
            "state": self._state.to_json(),
            "feeds": self._derivation.writer.state(),
            "lost_state": self._lost_state,
            "process": {name: getattr(self._derivation.writer.identity, name) for name in _LEARNED},
            "spool": spool.position,
        }
        saved = json.dumps(values)
        self._checkpoint.save(saved, frames)
        self._saved, self._saved_position = saved, self._state.position
        self._append(frames)

    def _append(self, frames: list[SpoolFrame]) -> None:
        assert self._spool is not None
        for frame in frames:
            self._spool.append(*frame)
        with suppress(OSError):  # an agent that is killed now appends them again
            self._checkpoint.done()
        self.ring.set_read(self._state.position)

    def _counts(self, header: RingHeader) -> tuple[int, ...]:
        state = self._state
        denied, dropped = header[HeaderField.DENIED], header[HeaderField.DROPPED]
        counts = (state.counts[name] for name in ("operations", "unknown_operations", "untrusted_times"))
        return *counts, dropped, denied

    def _report(self, header: RingHeader, now_ns: int, *, final: bool) -> None:
        """Count what was read, and publish the process's record when it is due."""
        before, self._counted = self._counted, self._counts(header)
        operations, *dropped = (max(0, b - a) for a, b in zip(before, self._counted, strict=True))
        metrics.AGENT_RING_OPERATIONS.inc(operations)
        for reason, count in zip(("unknown", "untrusted", "full", "denied"), dropped, strict=True):
            metrics.AGENT_RING_DROPPED.labels(reason).inc(count)
        if self._spool is None or self._derivation is None:
            return
        process = self._derivation.writer.identity
        answer = "" if final else self._answer(process, header.environment)
        if final or now_ns >= self._report_at or answer != self._answered:
            self._report_at, self._answered = now_ns + REPORT_NS, answer
            if not process.gpu_uuid and (gpu := self._gpu()):
                process = replace(process, gpu_uuid=gpu["uuid"], gpu_model=gpu["model"])
                self._derivation.writer.identity = process
            self._spool.identify(ring_record(process, header, self._state, answer, has_ended=final))
