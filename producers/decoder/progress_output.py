"""Publishes the progress of a recorded process from CUPTI's records, where no ring does (gpu.progress.v1)."""

from __future__ import annotations

from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.decoder.cupti_decode import Decoded
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.ipc.policy import ALWAYS, MODES, ROLLUP
from drumline.producers.live_matching.call_progress import CallProgress
from drumline.producers.rings.process_state import running_state
from drumline.producers.rings.progress import EXITED, KILLED
from drumline.schemas.topics import Topic

#: Interval at which it is published; ns.
INTERVAL_NS = 1_000_000_000
#: Policies that record a process from its begin to its end.
_WHOLE = frozenset(MODES[mode] for mode in (ALWAYS, ROLLUP))


class ProgressOutput:
    """Writes the progress of one process, once a second while it is recorded and has called NCCL, and at its end.

    Owned by Session, in the decoder's only thread. While recording is off nothing is known, and nothing published.

    `calls`: what the records show. `returned_ns`: host activity before it has been read, however long CUPTI holds a
    buffer; 0 = not known now. `step`: the last one that began. `problems`: the session's, short name -> sentence; gets
    "derive", for a defect costs the progress only.
    """

    def __init__(self, pool: BufferPool, pid: int, problems: dict[str, str]) -> None:
        self.calls, self.returned_ns, self.step = CallProgress(), 0, -1
        self._pool, self._pid, self._problems = pool, pid, problems
        self._losses, self._due_ns = self._lost_records(), 0

    def recording(self, on: bool, time_ns: int, policy: str = "", decoders: int = 1) -> None:
        """Note that recording was switched on or off. `decoders`: that the process had."""
        self.calls.recording(on, time_ns, policy in _WHOLE and decoders == 1)

    def step_began(self, number: int, time_ns: int) -> None:
        """Note that the process began a step; `number`: the last one that counts."""
        self.step = number
        self.calls.moved(time_ns)

    def take(self, decoded: Decoded, now_ns: int) -> None:
        """Take in what a buffer holds, read now."""
        try:
            self.calls.add(decoded.kernels, decoded.copies, decoded.markers, decoded.payloads, now_ns)
        except Exception as error:
            self._problems["derive"] = f"{type(error).__name__}: {error}"
            self.calls.lost()

    def write(self, writer: BatchWriter, now_ns: int) -> None:
        """Publish the progress if it is due."""
        if self.calls.is_known and self.calls.is_on and self.returned_ns and now_ns >= self._due_ns:
            self._write(writer, now_ns, running_state(self._pid))

    def finish(self, writer: BatchWriter, now_ns: int) -> None:
        """Publish that the process has ended, if it has published any progress."""
        if self._due_ns:
            self._write(writer, now_ns, EXITED if self._pool.header[Header.ENDED] else KILLED)
        self.calls.is_on = False

    def _write(self, writer: BatchWriter, now_ns: int, state: str) -> None:
        self._due_ns = now_ns + INTERVAL_NS
        if self._losses != self._lost_records():
            self.calls.lost()
        try:
            table = self.calls.table(now_ns, self.returned_ns or now_ns, self.step, state)
        except Exception as error:
            self._problems["derive"] = f"{type(error).__name__}: {error}"
            return
        writer.write(Topic.PROGRESS, table, FeedProgress(now_ns, 0))

    def _lost_records(self) -> list[int]:
        return [self._pool.header[field] for field in (Header.DENIED, Header.CUPTI_DROPPED, Header.FOREIGN)]
