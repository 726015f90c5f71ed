"""Sampling of this host's GPUs through NVML, into a spool like those of processes, so that an outage of Kafka loses
nothing.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.producers.batches.sample_envelopes import UNKNOWN
from drumline.producers.nvml.batches import DeviceBatches, jobs_on, part_of
from drumline.producers.nvml.query import NvmlLost, NvmlMissing
from drumline.producers.nvml.samples import Gpu, NoXidEvents, Nvml
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Time until NVML is opened again after a GPU or the driver was lost; s.
REOPEN_S = 15.0
COLUMNS = tuple(column.name for column in model(Topic.DEVICE).columns)
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
            except NvmlMissing as error:
                log.info("no GPU is sampled", reason=str(error))
                return
            except NvmlLost as error:
                self._lost(error)
                continue
            if (gpus := f"{len(nvml.gpus)} GPUs, {nvml.silent} more do not answer") != self._reported:
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
        while not self._halt.is_set():
            metrics.AGENT_GPUS.set(len(nvml.gpus))
            if nvml.silent and time.monotonic() >= reopen_at:
                return
            for gpu in list(nvml.gpus):
                if not self._sample(nvml, gpu, 0):
                    reopen_at = time.monotonic() + REOPEN_S
            due = max(due + self._options.period_s, time.monotonic())
            while not self._halt.is_set() and (left := due - time.monotonic()) > 0:
                try:
                    event = nvml.wait_xid(min(left, EVENT_WAIT_S))
                except NoXidEvents:
                    self._halt.wait(min(left, EVENT_WAIT_S))
                    continue
                if event is not None:
                    gpu, xid = event
                    log.warning("XID", gpu=gpu.index, uuid=gpu.uuid, xid=xid)
                    metrics.AGENT_XIDS.inc()
                    if not self._sample(nvml, gpu, xid):
                        reopen_at = time.monotonic() + REOPEN_S

    def _sample(self, nvml: Nvml, gpu: Gpu, xid: int) -> bool:
        """Emit a sample, also of a lost GPU if there is an XID; return False if the GPU is lost."""
        row: dict[str, float] = {**dict.fromkeys(COLUMNS, UNKNOWN), "time_ns": self._options.now_ns()}
        pids: dict[int, tuple[int, int]] = {}
        try:
            row |= nvml.sample(gpu, int(row["time_ns"]), complete=bool(xid))
            pids = nvml.processes(gpu)
            self._report_absent(gpu)
        except NvmlLost as error:
            log.warning("a GPU is lost; the others are sampled", gpu=gpu.index, uuid=gpu.uuid, error=str(error))
            nvml.drop(gpu)
            if not xid:
                return False
        for pid in [pid for pid, known in self.gpus.items() if known["uuid"] == gpu.uuid and pid not in pids]:
            del self.gpus[pid]
        self.gpus.update({pid: {"uuid": gpu.uuid, "model": gpu.model} for pid in pids})
        row["xid"] = xid
        processes = self._processes()
        jobs = jobs_on(gpu.uuid, pids, self._batches.host, processes)
        parts = {job: part_of(job, pids, self._batches.host, processes) for job in jobs}
        for key, batch in self._batches.batches(gpu.uuid, gpu.index, row, jobs, parts):
            self._spool.append_batch(key, batch)
        return gpu in nvml.gpus

    def _report_absent(self, gpu: Gpu) -> None:
        """Log once which readings GPUs of this model do not have."""
        absent = (gpu.model, tuple(sorted(gpu.query.absent)))
        if absent[1] and absent not in self._absent:
            self._absent.add(absent)
            log.info("readings that this GPU does not have", gpu=gpu.index, model=gpu.model, **gpu.query.absent)

    def _lost(self, error: Exception) -> None:
        metrics.AGENT_GPUS.set(0)
        if (text := f"{type(error).__name__}: {error}") != self._reported:
            self._reported = text
            log.warning("NVML is lost, it is opened again", error=self._reported)
        self._halt.wait(REOPEN_S)
