"""Sampling of Python stacks on this host, when a verdict names one of its processes; into the agent's own spool."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.ipc.policy import OFF, BadPolicy, parse, read_policy_text
from drumline.producers.spool.location import control_file
from drumline.producers.spool.writer import SpoolWriter
from drumline.producers.stacks.follower import VerdictFollower
from drumline.producers.stacks.permission import Denied, NoProcess, may_trace_all, subject
from drumline.producers.stacks.plan import Sampling, SamplingPlan
from drumline.producers.stacks.sampling_run import (
    LENGTH_S,
    RATE,
    SUSPECT_LENGTH_S,
    SUSPECT_PARTS,
    NoPySpy,
    Recording,
    SamplingFailed,
    py_spy,
)
from drumline.producers.stacks.stack_batches import StackBatches
from drumline.producers.stacks.verdicts import HANG, SUSPECT, Verdict
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec

log = structlog.get_logger()

POLL_S = 0.5
#: Reasons that are logged, once each.
MOST_REASONS = 256


@dataclass(frozen=True)
class StackSources:
    """Holds what a sampler needs of the rest of the agent.

    Attributes:
        follower: of verdicts; the sampler closes it.
        processes: returns the recorded processes that are alive on this host.
        emit: takes each batch, in the sampler's thread.
        is_off: returns whether the host's policy forbids to record.
        length_s, suspect_length_s: of a sampling, and of one of a suspect at least.
        captures: returns the next deep window that asks for stacks, None without one.
        stands: takes each verdict on a job that stands still, at once.
    """

    follower: VerdictFollower
    processes: Callable[[], Sequence[RecordedProcess]]
    emit: Callable[[Batch], None]
    is_off: Callable[[], bool]
    length_s: int = LENGTH_S
    suspect_length_s: int = SUSPECT_LENGTH_S
    captures: Callable[[], Verdict | None] = lambda: None
    stands: Callable[[Verdict], None] = lambda verdict: None


class StackSampler(threading.Thread):
    """Follows verdicts and samples. A thread of its own; `drumline agent` starts it and calls `stop`."""

    def __init__(self, plan: SamplingPlan, batches: StackBatches, sources: StackSources) -> None:
        super().__init__(name="stacks", daemon=True)
        self._plan, self._batches, self._sources = plan, batches, sources
        self._halt = threading.Event()
        self._reasons: set[str] = set()

    def stop(self) -> None:
        """Stop the thread; a sampling under way is left unfinished."""
        self._halt.set()
        self.join(3.0)

    def run(self) -> None:
        """Sample until `stop`; where py-spy is missing, only pass on which jobs stand still."""
        program = None
        try:
            program = py_spy()
        except NoPySpy as error:
            log.info("no stacks are sampled", reason=str(error))
        try:
            self._follow(program)
        except Exception as error:  # the agent publishes without stacks
            log.error("no stacks are sampled any more", error=f"{type(error).__name__}: {error}")
        finally:
            self._sources.follower.close()

    def _follow(self, program: str | None) -> None:
        while not self._halt.is_set():
            verdict = self._sources.captures() or self._sources.follower.poll(POLL_S)
            if verdict is not None and verdict.kind == HANG:
                self._sources.stands(verdict)
            if verdict is None or program is None:
                continue
            samplings = self._plan.samplings(verdict, self._sources.processes(), time.time())
            while self._plan.skipped:
                reason, count = self._plan.skipped.popitem()
                metrics.AGENT_STACKS.labels(reason).inc(count)
            if samplings and self._sources.is_off():
                metrics.AGENT_STACKS.labels("off").inc(len(samplings))
            elif samplings:
                self.sample(samplings, program)

    def sample(self, samplings: Sequence[Sampling], program: str) -> None:
        """Sample these processes at the same time, and emit what was seen. Blocks for the length and py-spy's end."""
        may_all, user = may_trace_all(), os.geteuid()
        running: list[tuple[Sampling, Recording]] = []
        verdict, length_s, parts = samplings[0].verdict, self._sources.length_s, 1
        if verdict.kind == SUSPECT:
            parts = SUSPECT_PARTS
            length_s = max(self._sources.suspect_length_s, math.ceil(parts * verdict.step_ns / 1e9))
        start_ns = time.time_ns()
        for sampling in samplings:
            try:
                target = subject(sampling.process, user, may_all)
                running.append((sampling, Recording(target, program, length_s, parts)))
            except (NoProcess, Denied, OSError) as error:
                self._failed(error)
        until = time.monotonic() + length_s
        while running and time.monotonic() < until and not self._halt.is_set():
            for _, recording in running:
                recording.poll()
            self._halt.wait(1 / RATE)
        end_ns = time.time_ns()
        for sampling, recording in running:
            try:
                if self._halt.is_set():
                    recording.cancel()
                    continue
                recorded = recording.finish()
            except (NoProcess, Denied, SamplingFailed) as error:
                self._failed(error)
                continue
            for batch in self._batches.batches(sampling, recorded, start_ns, end_ns):
                self._sources.emit(batch)
            metrics.AGENT_STACKS.labels("sampled").inc()
            log.info("stacks sampled", job=verdict.job, rank=sampling.process.record["rank"], role=sampling.role)

    def _failed(self, error: Exception) -> None:
        metrics.AGENT_STACKS.labels("denied" if isinstance(error, Denied) else "failed").inc()
        reason = str(error)
        if isinstance(error, NoProcess) or reason in self._reasons or len(self._reasons) >= MOST_REASONS:
            return
        self._reasons.add(reason)
        log.warning("a process is not sampled", reason=reason)


def is_off(path: Path) -> bool:
    """Return whether a host's control file forbids to record."""
    try:
        return parse(read_policy_text(path) or "auto").mode == OFF
    except (BadPolicy, OSError):
        return False


def stack_sampler(
    settings: Settings,
    codec: Codec,
    spool: SpoolWriter,
    process_id: str,
    processes: Callable[[], Sequence[RecordedProcess]],
    captures: Callable[[], Verdict | None] = lambda: None,
    stands: Callable[[Verdict], None] = lambda verdict: None,
) -> StackSampler:
    """Return the sampler of this host. `spool`: the agent's own; `process_id`: the agent's; `captures`, `stands`: as of
    StackSources."""

    def emit(batch: Batch) -> None:
        spool.append_batch(str(batch.envelope["job"]), batch)

    def jobs() -> set[str]:
        return {str(process.record.get("job", "")) for process in processes()}

    control = control_file({"DRUMLINE_SPOOL__ROOT": str(settings.spool.root)})
    follower = VerdictFollower(settings, codec, jobs)
    sources = StackSources(follower, processes, emit, lambda: is_off(control), captures=captures, stands=stands)
    return StackSampler(SamplingPlan(), StackBatches(process_id), sources)
