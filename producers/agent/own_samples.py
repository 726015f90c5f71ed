"""The agent's own samples of its host: of GPUs, links, recorded processes and their stacks, in a spool of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.version import drumline_version
from drumline.producers.agent.agent import Agent
from drumline.producers.agent.kept_rows import KeptRows
from drumline.producers.batching.process_record import process_record
from drumline.producers.batching.sample_envelopes import SampleEnvelopes
from drumline.producers.control.control_mirror import ControlMirror, control_mirror
from drumline.producers.control.waiting_jobs import make_folder, waiting_jobs
from drumline.producers.health.check_at_start import CheckAtStart
from drumline.producers.host.process_sampler import HostBatches, HostSampler
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.identity import host_identity
from drumline.producers.network.connection_sampler import ConnectionBatches, ConnectionSampler
from drumline.producers.network.link_sampler import LinkBatches, LinkSampler
from drumline.producers.network.link_samples import LinkSamples, expected_speeds
from drumline.producers.nvml.batches import DeviceBatches
from drumline.producers.nvml.sampler import DeviceSampler, SamplerOptions
from drumline.producers.ras.request_thread import RasReader, run_of
from drumline.producers.spool.location import control_file
from drumline.producers.spool.quota import PROCESSES, SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.producers.stacks.stack_sampler import StackSampler, is_off, stack_sampler
from drumline.producers.stacks.verdicts import CAPTURE, Verdict
from drumline.schemas.codec import Codec
from drumline.schemas.control import PULL, Control

#: Bound of the spool; bytes.
SPOOL_BYTES = 16 << 20


class OwnSamples:
    """Threads that sample this host, so that an outage of Kafka loses nothing: the agent is a process like the others,
    without a job.

    `drumline agent` makes one and calls `stop`. It may block in NVML calls.
    """

    def __init__(self, settings: Settings, program: Agent, codec: Codec, kept: KeptRows | None = None) -> None:
        """Start them. `codec`: of no other thread. `kept`: whose rows pulls ask for."""
        identity = host_identity("agent", time.time_ns(), {"drumline": drumline_version()}, settings.host)
        host = identity.host
        record, host_bytes = process_record(os.environ, identity), PROCESSES * (settings.spool.max_mb << 20)
        self._spool = SpoolWriter(settings.spool.root, record, SpoolLimits(SPOOL_BYTES, host_bytes))
        self._captures: SimpleQueue[Control] = SimpleQueue()
        self._kept = kept
        self._threads: list[
            CheckAtStart
            | ConnectionSampler
            | ControlMirror
            | DeviceSampler
            | HostSampler
            | LinkSampler
            | RasReader
            | StackSampler
        ] = []
        if settings.agent.gpu_s:
            options = SamplerOptions(settings.agent.gpu_s, identity.versions)
            gpus = DeviceSampler(
                self._spool, DeviceBatches(identity.process_id, host), lambda: program.processes, options
            )
            gpus.gpus = program.gpus
            self._threads.append(gpus)
        if settings.agent.host_s:
            batches = HostBatches(identity.process_id, host)
            self._threads.append(HostSampler(self._spool, batches, lambda: program.recorded, settings.agent.host_s))
        if settings.agent.network_s:
            samples = LinkSamples(expected_speeds(settings.agent.links))
            links = LinkBatches(identity.process_id, host)
            self._threads.append(LinkSampler(self._spool, links, samples, settings.agent.network_s))
            connections = ConnectionBatches(identity.process_id, host)
            self._threads.append(ConnectionSampler(self._spool, connections, lambda: program.recorded))
        if settings.agent.stacks:
            control = control_file({"DRUMLINE_SPOOL__ROOT": str(settings.spool.root)})
            ras = RasReader(program.ras, lambda: program.recorded, lambda: is_off(control))
            self._threads += [ras, stack_sampler(
                settings, codec, self._spool, identity.process_id, lambda: program.recorded, self._next_capture,
                partial(_request_ras, ras, lambda: program.recorded),
            )]  # fmt: skip
        if settings.agent.control:
            make_folder(settings.spool.root)
            kept_jobs: Callable[[], set[str]] = kept.segments.jobs if kept is not None else set
            if kept is not None:
                kept.puller.start()
            self._threads.append(
                control_mirror(
                    settings,
                    codec,
                    lambda: (
                        {str(process.get("job", "")) for process in program.processes}
                        | waiting_jobs(settings.spool.root)
                        | kept_jobs()
                    ),
                    self._window_began,
                    kept_jobs,
                    lambda: program.jobs_in_part,
                )
            )
        if settings.agent.check != "off":
            python = settings.agent.python if settings.agent.check == "load" else ""
            envelopes = SampleEnvelopes(identity.process_id, host)
            self._threads.append(CheckAtStart(self._spool, envelopes, settings.agent.gpus, python))
        for thread in self._threads:
            thread.start()

    def _window_began(self, window: Control) -> None:
        if window.kind == PULL and self._kept is not None:
            self._kept.puller.add(window)
        elif window.stacks:
            self._captures.put(window)

    def _next_capture(self) -> Verdict | None:
        """Return the next deep window that asks for stacks, as their sampler takes it."""
        with suppress(Empty):
            window = self._captures.get_nowait()
            return Verdict(
                CAPTURE, window.job, window.run, window.requested_ns / 1e9, window.ranks, -1, window.first_step,
                window.last_step, window.requested_ns, of_all=not window.ranks,
            )  # fmt: skip
        return None

    def stop(self) -> None:
        """Stop the threads and close the spool."""
        for thread in self._threads:
            thread.stop()
        self._spool.close()


def _request_ras(ras: RasReader, processes: Callable[[], Sequence[RecordedProcess]], verdict: Verdict) -> None:
    """Let RAS be requested about a run that stands still, if one of the ranks whose hosts do it is on this one."""
    run = verdict.job, verdict.run
    on_host = {process.record["rank"] for process in processes() if run_of(process) == run}
    if not on_host.isdisjoint(verdict.requesting):
        ras.request(run)
