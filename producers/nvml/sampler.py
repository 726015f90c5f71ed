"""Sampling of this host's GPUs through NVML, into a spool like those of processes, so that an outage of Kafka loses
nothing.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.producers.nvml.batches import DeviceBatches, Part, jobs_on, part_of
from drumline.producers.nvml.lost_gpus import Jobs, LostGpus
from drumline.producers.nvml.pci_bus import gpus_on_bus
from drumline.producers.nvml.query import DriverMissing, NvmlLost, NvmlMissing
from drumline.producers.nvml.samples import Gpu, NoXidEvents, Nvml, Xid
from drumline.producers.spool.writer import SpoolWriter

log = structlog.get_logger()

#: Time until NVML is opened again after a GPU or the driver was lost; s.
REOPEN_S = 10.0
#: Longest wait for an event, so that `stop` is fast; s.
EVENT_WAIT_S = 0.5


def pynvml() -> Any:
    """Return the NVML library. Raises NvmlMissing."""
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise NvmlMissing("nvidia-ml-py is not installed: pip install 'drumline[gpu]'") from None


@dataclass(frozen=True)
class SamplerOptions:
    """Behaviour of a sampler.

    Attributes:
        period_s: between two samples of a GPU.
        versions: of drumline, for the spool's identity.
        load: returns the NVML module.
        now_ns: wall clock.
    """

    period_s: float
    versions: Mapping[str, str] = field(default_factory=dict)
    load: Callable[[], Any] = pynvml
    now_ns: Callable[[], int] = time.time_ns


class DeviceSampler(threading.Thread):
    """Samples every GPU once a period, and at once when an XID event occurs.

    A thread of its own; `drumline agent` starts it and calls `stop`. It blocks in NVML calls.
    `processes` returns the envelopes of the processes that are alive on this host. `gpus`: GPU of each process.
    """

    def __init__(
        self,
        spool: SpoolWriter,
        batches: DeviceBatches,
        processes: Callable[[], Sequence[Mapping[str, Any]]],
        options: SamplerOptions,
    ) -> None:
        super().__init__(name="nvml", daemon=True)
        self._spool, self._batches, self._processes, self._options = spool, batches, processes, options
        self._halt = threading.Event()
        self._reported = ""
        self._absent: set[tuple[str, tuple[str, ...]]] = set()  # models and readings that were said
        self._lost_gpus = LostGpus()
        self.gpus: dict[int, dict[str, str]] = {}

    def stop(self) -> None:
        """Stop the thread."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Sample until `stop`; ends without it only where there is no NVML at all."""
        while not self._halt.is_set():
            try:
                nvml = Nvml(self._options.load())
            except (NvmlMissing, NvmlLost) as error:
                if not self._lost_gpus and not isinstance(error, NvmlLost):
                    if not isinstance(error, DriverMissing):
                        log.info("no GPU is sampled", reason=str(error))
                        return
                    self._wait_for_driver(error)
                    continue
                self._lost(error)  # also where the driver is unloaded while another one is installed
                continue
            if (gpus := f"{len(nvml.gpus)} GPUs, {len(nvml.silent)} more do not answer") != self._reported:
                log.info("sampling", gpus=gpus, driver=nvml.driver, period_s=self._options.period_s)
            self._reported = gpus
            self._spool.identify({"versions": {**self._options.versions, "driver": nvml.driver}})
            try:
                self._sample_until_lost(nvml)
            except Exception as error:  # one faulty GPU must not end the sampling of a host
                self._lost(error)
            finally:
                nvml.close()

    def _sample_until_lost(self, nvml: Nvml) -> None:
        """Sample, and return when GPUs that do not answer are due for another try."""
        due, reopen_at = time.monotonic(), time.monotonic() + REOPEN_S
        self._lost_gpus.opened((gpu.uuid for gpu in nvml.gpus), nvml.silent, self._options.now_ns())
        while not self._halt.is_set():
            metrics.AGENT_GPUS.set(len(nvml.gpus))
            if nvml.silent and time.monotonic() >= reopen_at:
                return
            for gpu in list(nvml.gpus):
                if not self._sample(nvml, gpu, None):
                    reopen_at = time.monotonic() + REOPEN_S
            self._sample_lost()
            due = max(due + self._options.period_s, time.monotonic())
            while not self._halt.is_set() and (left := due - time.monotonic()) > 0:
                try:
                    event = nvml.wait_xid(min(left, EVENT_WAIT_S))
                except NoXidEvents:
                    self._halt.wait(min(left, EVENT_WAIT_S))
                    continue
                if event is not None:
                    gpu = event.gpu
                    log.warning("XID", gpu=gpu.index, uuid=gpu.uuid, xid=event.number, instance=event.instance)
                    metrics.AGENT_XIDS.inc()
                    if not self._sample(nvml, gpu, event):
                        reopen_at = time.monotonic() + REOPEN_S

    def _sample(self, nvml: Nvml, gpu: Gpu, event: Xid | None) -> bool:
        """Emit samples of a GPU and its instances, also of a lost one at an XID; return False if it is lost."""
        now_ns = self._options.now_ns()
        row: dict[str, float] = {"time_ns": now_ns}
        xid = event.number if event is not None else 0
        rows: list[tuple[Part, str, dict[str, float], dict[int, tuple[int, int]]]] = []
        try:
            row |= nvml.sample(gpu, now_ns, complete=bool(xid))
            rows.append((gpu.part, gpu.model, row | {"xid": xid}, {} if gpu.instances else nvml.processes(gpu)))
            for piece in gpu.instances:
                concerned = xid if event is not None and event.instance in (-1, piece.part.instance) else 0
                rows.append(
                    (piece.part, piece.model, piece.sample(row, now_ns) | {"xid": concerned}, piece.processes())
                )
            self._report_absent(gpu)
        except NvmlLost as error:
            log.warning("a GPU is lost; the others are sampled", gpu=gpu.index, uuid=gpu.uuid, error=str(error))
            nvml.drop(gpu)
            self._lost_gpus.silent(gpu.part, now_ns)
            if xid:
                row = {"time_ns": now_ns, "lost": 1, "xid": xid}
                self._emit(gpu.part, row, self._lost_gpus.jobs(gpu.part), {})
            return False
        self._note_processes({pid: (part.uuid, model) for part, model, _, pids in rows for pid in pids}, gpu)
        processes = self._processes()
        of_gpu: dict[str, Mapping[str, Any]] = {}
        for part, _, sample, pids in rows:
            jobs = {} if gpu.instances and part.instance < 0 else self._jobs_on(part, pids, processes)
            of_gpu |= jobs
            self._emit(part, sample, jobs, {job: part_of(job, pids, self._batches.host, processes) for job in jobs})
        self._lost_gpus.answered(gpu.part, of_gpu)
        return True

    def _jobs_on(self, part: Part, pids: Collection[int], processes: Sequence[Mapping[str, Any]]) -> Jobs:
        return jobs_on(part.uuid, pids, self._batches.host, processes, part.parent)

    def _sample_lost(self) -> None:
        """Emit a sample of each lost GPU that one is due of."""
        now_ns = self._options.now_ns()
        for part, jobs in self._lost_gpus.due(now_ns):
            self._emit(part, {"time_ns": now_ns, "lost": 1, "xid": 0}, jobs, {})

    def _emit(self, part: Part, row: Mapping[str, float], jobs: Jobs, parts: Mapping[str, Mapping[str, float]]) -> None:
        for key, batch in self._batches.batches(part, row, jobs, parts):
            self._spool.append_batch(key, batch)

    def _note_processes(self, present: Mapping[int, tuple[str, str]], gpu: Gpu) -> None:
        """Keep the GPU or instance of each process, for processes that do not know it."""
        parts = {gpu.uuid, *(instance.part.uuid for instance in gpu.instances)}
        for pid in [pid for pid, known in self.gpus.items() if known["uuid"] in parts and pid not in present]:
            del self.gpus[pid]
        self.gpus.update({pid: {"uuid": uuid, "model": model} for pid, (uuid, model) in present.items()})

    def _report_absent(self, gpu: Gpu) -> None:
        """Log once which readings GPUs of this model do not have."""
        absent = (gpu.model, tuple(sorted(gpu.query.absent)))
        if absent[1] and absent not in self._absent:
            self._absent.add(absent)
            log.info("readings that this GPU does not have", gpu=gpu.index, model=gpu.model, **gpu.query.absent)

    def _wait_for_driver(self, error: Exception) -> None:
        """Wait before the next try where no driver is loaded yet: the agent may start before it."""
        if (text := str(error)) != self._reported:
            self._reported, count = text, gpus_on_bus()
            report = log.warning if count else log.info
            report("no GPU is sampled until a driver is loaded", reason=text, gpus_on_bus=count)
        self._halt.wait(REOPEN_S)

    def _lost(self, error: Exception) -> None:
        metrics.AGENT_GPUS.set(0)
        if (text := f"{type(error).__name__}: {error}") != self._reported:
            self._reported = text
            log.warning("NVML is lost, it is opened again", error=self._reported)
        self._lost_gpus.driver_away(self._options.now_ns())
        self._sample_lost()
        self._halt.wait(REOPEN_S)
