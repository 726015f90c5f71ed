"""Wire the worker's stages to the topics between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.registry import codec
from drumline.infra.runtime.stage import Stage
from drumline.infra.telemetry.health import Health
from drumline.schemas.topics import JOINED_TOPICS, Topic
from drumline.streams.core.state_budget import StateBudget, StateLimits
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage
from drumline.streams.lateness import state as lateness
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers import state as jobs
from drumline.streams.stragglers.restore import block_of_key
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows import process_state as processes
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.memcpy_bandwidth import MemcpyBandwidth
from drumline.streams.windows.stage import ProcessWindows, Reducer
from drumline.streams.worker.checks.preflight import preflight
from drumline.streams.worker.faust_app import StreamWorker, Wiring
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore

#: Limits of a container, cgroups v2 and v1; a file that is missing, or says "max", limits nothing.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
WRITTEN = (Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH, Topic.LATENESS, Topic.STRAGGLER, Topic.HANG)


def straggler_config(settings: Settings) -> StragglerConfig:
    """Return the settings of the straggler stages."""
    stream = settings.stream
    return StragglerConfig(
        window_steps=stream.window_steps,
        idle_ns=round(stream.idle_s * 1e9),
        price_per_gpu_hour=stream.price_per_gpu_hour,
    )


def state_bytes(settings: Settings, limits: Iterable[Path] = MEMORY_LIMITS) -> int:
    """Return the state above which a worker is full: the setting, or a quarter of the memory it may use.

    16,384 ranks keep 0.8 GB, as they are written; the rest is for the program, records in flight, and other programs.
    """
    if settings.stream.state_mb is not None:
        return settings.stream.state_mb * 1_000_000
    texts = [path.read_text().strip() for path in limits if path.is_file()]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(text) for text in texts if text.isdigit())]) // 4


def wirings(settings: Settings) -> list[Wiring]:
    """Return the stages: per process, per communicator, per job."""
    windows, stragglers = WindowConfig.of(settings.stream), straggler_config(settings)
    budget = StateBudget(StateLimits(worker_bytes=state_bytes(settings)))
    hangs = HangConfig(hung_ns=round(settings.stream.hung_s * 1e9))

    def rolling(reducer: Reducer) -> Callable[[PartitionStore], Stage]:
        return lambda store: ProcessWindows(store, windows, reducer, budget)

    inputs = (Topic.LATENESS, Topic.STEP, Topic.DEVICE, Topic.HOST, Topic.TRANSFER, Topic.STACK)
    of_processes = CheckpointOrder(processes.CHECKPOINT_KINDS)
    of_communicators = CheckpointOrder(lateness.CHECKPOINT_KINDS)
    of_jobs = CheckpointOrder(jobs.CHECKPOINT_KINDS, jobs.AT_ONCE_KINDS, jobs.ROW_BYTES, block_of_key)

    def communicators(store: PartitionStore) -> Stage:
        return CommunicatorStage(store, stragglers, budget)

    return [
        Wiring("kernel-frequency", (Topic.KERNEL,), rolling(KernelFrequency()), of_processes),
        Wiring("memcpy-bandwidth", (Topic.MEMCPY,), rolling(MemcpyBandwidth()), of_processes),
        Wiring("communicator", (Topic.COLLECTIVE,), communicators, of_communicators),
        Wiring("job", inputs, lambda store: JobStage(store, stragglers, budget, settings.stream.app_id), of_jobs),
        Wiring("hangs", (Topic.PROGRESS, Topic.TRANSFER), lambda store: HangStage(store, hangs, budget)),
    ]


def build(settings: Settings, health: Health | None = None) -> StreamWorker:
    """Check the topics, create the changelogs, get the ids of all written schemas, and build the worker.

    Retry later: BrokerUnreachable, RegistryUnavailable. Fatal: TopicsNotReady, MissingTopics, KafkaAccessDenied,
    ValueError.
    """
    stages = wirings(settings)
    topics = preflight(settings, JOINED_TOPICS, (*WRITTEN, Topic.TICK), [stage.name for stage in stages])
    return StreamWorker(settings, stages, topics, codec(settings, WRITTEN), health)
