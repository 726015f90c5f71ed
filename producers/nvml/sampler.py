"""The agent's other thread: NVML samples of this host's GPUs, into a spool of its own, so that an outage of Kafka is
treated alike for all data. An XID event is a sample at once."""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.version import drumline_version
from drumline.infra.telemetry import metrics
from drumline.producers.batches.process_record import process_record
from drumline.producers.identity import Identity, process_id
from drumline.producers.nvml.batches import DeviceFeed, jobs_on
from drumline.producers.nvml.samples import UNKNOWN, Gpu, Nvml, NvmlLost, NvmlMissing, Unwatched
from drumline.producers.spool.quota import PROCESSES
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Until NVML is opened again after a GPU or the driver was lost; s.
REOPEN_S = 15.0
COLUMNS = tuple(column.name for column in model(Topic.DEVICE).columns)
#: The most of its own samples; bytes.
SPOOL_BYTES = 16 << 20
#: Longest wait for an event, so that a stop does not wait; s.
NAP_S = 0.5


def pynvml() -> Any:
    """The real library. Raises NvmlMissing."""
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise NvmlMissing("nvidia-ml-py is not installed: pip install 'drumline[gpu]'") from None


class DeviceSampler(threading.Thread):
    """`processes`: envelopes of the processes that live on this host now. `load`: gives the NVML module."""

    def __init__(
        self,
        spool: SpoolWriter,
        feed: DeviceFeed,
        host: str,
        processes: Callable[[], Sequence[Mapping[str, Any]]],
        period_s: float,
        versions: Mapping[str, str],
        load: Callable[[], Any] = pynvml,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(name="nvml", daemon=True)
        self._spool, self._feed, self._host, self._processes = spool, feed, host, processes
        self._period_s, self._load, self._now_ns = period_s, load, now_ns
        self._versions = dict(versions)
        self._halt = threading.Event()
        self._said = ""

    def stop(self) -> None:
        self._halt.set()
        self.join(5.0)
        self._spool.close()

    def run(self) -> None:
        """Until `stop`; ends by itself only where there is no NVML at all."""
        while not self._halt.is_set():
            try:
                nvml = Nvml(self._load())
            except NvmlMissing as error:
                log.info("no GPU is sampled", reason=str(error))
                return
            except NvmlLost as error:
                self._lost(error)
                continue
            if (found := f"{len(nvml.gpus)} GPUs, {nvml.silent} more do not answer") != self._said:
                log.info("sampling", found=found, driver=nvml.driver, period_s=self._period_s)
            self._said = found
            self._spool.identify({"versions": {**self._versions, "driver": nvml.driver}})
            try:
                self._sample_until_lost(nvml)
            except Exception as error:  # one GPU's nonsense must not end the sampling of a host for good
                self._lost(error)
            finally:
                nvml.close()

    def _sample_until_lost(self, nvml: Nvml) -> None:
        """Returns when it is time to look whether GPUs that do not answer are back."""
        due, reopen_at = time.monotonic(), time.monotonic() + REOPEN_S
        while not self._halt.is_set():
            metrics.AGENT_GPUS.set(len(nvml.gpus))
            if nvml.silent and time.monotonic() >= reopen_at:
                return
            for gpu in list(nvml.gpus):
                if not self._sample(nvml, gpu, 0):
                    reopen_at = time.monotonic() + REOPEN_S
            due = max(due + self._period_s, time.monotonic())
            while not self._halt.is_set() and (left := due - time.monotonic()) > 0:
                try:
                    event = nvml.wait_xid(min(left, NAP_S))
                except Unwatched:
                    self._halt.wait(min(left, NAP_S))
                    continue
                if event is not None:
                    gpu, xid = event
                    log.warning("XID", gpu=gpu.index, uuid=gpu.uuid, xid=xid)
                    metrics.AGENT_XIDS.inc()
                    if not self._sample(nvml, gpu, xid):
                        reopen_at = time.monotonic() + REOPEN_S

    def _sample(self, nvml: Nvml, gpu: Gpu, xid: int) -> bool:
        """False if the GPU is lost: it is not sampled any more; an XID is sent all the same."""
        row, pids = dict.fromkeys(COLUMNS, UNKNOWN) | {"time_ns": self._now_ns()}, frozenset[int]()
        try:
            row |= nvml.sample(gpu, row["time_ns"])
            pids = nvml.pids(gpu)
        except NvmlLost as error:
            log.warning("a GPU is lost; the others are sampled", gpu=gpu.index, uuid=gpu.uuid, error=str(error))
            nvml.drop(gpu)
            if not xid:
                return False
        row["xid"] = xid
        jobs = jobs_on(gpu.uuid, pids, self._host, self._processes())
        for key, batch in self._feed.batches(gpu.uuid, gpu.index, row, jobs):
            self._spool.append(str(Topic.DEVICE), key, encode(model(Topic.DEVICE), batch), 1)
        return gpu in nvml.gpus

    def _lost(self, error: Exception) -> None:
        metrics.AGENT_GPUS.set(0)
        if (said := f"{type(error).__name__}: {error}") != self._said:
            self._said = said
            log.warning("NVML is lost, it is opened again", error=self._said)
        self._halt.wait(REOPEN_S)


def device_sampler(settings: Settings, processes: Callable[[], Sequence[Mapping[str, Any]]]) -> DeviceSampler:
    """The sampler of this host with its spool: the agent is a process like the others, without a job."""
    now_ns, host = time.time_ns(), socket.gethostname()
    who = Identity(
        job="",
        run=str(now_ns),
        rank=-1,
        local_rank=-1,
        world_size=0,
        host=host,
        gpu_uuid="",
        process_id=process_id("agent", host, os.getpid(), now_ns),
        pid=os.getpid(),
        start_ns=now_ns,
        source="agent",
        versions={"drumline": drumline_version()},
    )
    record, together = process_record(os.environ, who), PROCESSES * (settings.spool.max_mb << 20)
    spool = SpoolWriter(settings.spool.root, record, max_bytes=SPOOL_BYTES, host_bytes=together)
    feed = DeviceFeed(who.process_id, host)
    return DeviceSampler(spool, feed, host, processes, settings.agent.gpu_s, who.versions)
