"""Measures worker and sink beside made-up jobs of 4 to 16,384 ranks: Kafka, Faust, decoding and state included."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.lab.bench.processes.child_process import child
from drumline.lab.bench.processes.ephemeral_stack import private_stack, server_cpu_s
from drumline.lab.bench.result import BenchReport, Progress
from drumline.lab.bench.simulated_job import (
    AXES,
    STEP_NS,
    Communicator,
    SimulatedJob,
    collectives,
    joined_steps,
    lateness,
    rank_batches,
)
from drumline.lab.bench.stack_contents import published_bytes, stored_bytes, verdict_ranks
from drumline.producers.agent.joiner import RecordJoiner
from drumline.producers.agent.producer import Answer
from drumline.producers.replay.publisher import Publisher
from drumline.producers.replay.recording import TimedBatch
from drumline.schemas.codec import Codec
from drumline.schemas.dead_letters import Header
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig

RANKS = (4, 64, 1024, 4096, 16384)
#: Steps of a large job, at least: one window, and those that close it. Small jobs have more, for so many messages.
STEPS, MOST_STEPS, MESSAGES = StragglerConfig().window_steps + 2, 400, 20_000
#: Messages at most of topics whose messages cost the same each: collectives of some communicators, progress of some
#: steps. The others are not published.
SAMPLED = 100_000
#: Time limit of a stage; s. A slower one is measured by what it has done, and names no rank.
STAGE_S = 150.0
BY_RANK = (Topic.STEP, Topic.DEVICE, Topic.HOST)
#: Stage -> its topics, in the order of measurement: the last one publishes lateness that the first one would read.
STAGES = {"job": (*BY_RANK, Topic.LATENESS), "hangs": (Topic.PROGRESS,), "communicator": (Topic.COLLECTIVE,)}
#: What a sink stores of the job.
SUNK = (Topic.COLLECTIVE, *BY_RANK, Topic.PROGRESS, Topic.LATENESS)
#: Share of a core that the job's partition may take, and MiB of its worker.
PARTITION_CORES, WORKER_MIB = 0.7, 600
#: From the start of a killed worker's successor until it has the job's state, s.
RESTART_S = 30
#: Largest rise of the CPU of a rank, from the first size of this many ranks on.
WITHIN, FROM_RANKS = 0.15, 64


@dataclass
class JobSize:
    """Holds what was measured at one size.

    Attributes:
        messages, rows, bytes: of a second of the whole job, by topic; bytes as in Kafka.
        published: messages, by topic. shares: part that was published of the topics that are sampled.
        stages: stage -> values that stream_child printed.
        stored: what storing a second of the job takes: CPU seconds of sink, engine and broker, bytes by table; empty
            where a part was left out.
        named: ranks that verdicts name.
        restart_s: wall clock of a new worker, in place of a killed one, until it has the job's state.
    """

    job: SimulatedJob
    messages: dict[str, float] = field(default_factory=dict)
    rows: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    published: Counter[str] = field(default_factory=Counter)
    shares: dict[str, float] = field(default_factory=dict)
    stages: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)
    named: list[int] = field(default_factory=list)
    restart_s: float = 0.0

    def message_s(self, stage: str) -> float:
        """Return the CPU seconds of a stage for a message."""
        return float(self.stages[stage]["cpu_s"]) / max(int(self.stages[stage]["records"]), 1)

    def cores(self, stage: str) -> float:
        """Return the CPU seconds of a stage for a second of the job."""
        return self.message_s(stage) * sum(self.messages[topic] for topic in STAGES[stage])

    @property
    def partition(self) -> float:
        """Return the share of a core that the partition takes that has the job: what is keyed by the job."""
        return self.cores("job") + self.cores("hangs")

    @property
    def rank_cost(self) -> float:
        """Return the CPU of all stages for a second of a rank in reference workloads, timed meanwhile.

        Such costs are comparable under different load of other programs.
        """
        costs = (self.cores(stage) / float(done["reference_s"]) for stage, done in self.stages.items())
        return sum(costs) / self.job.ranks

    @property
    def memory(self) -> int:
        """Return the largest resident size of any stage's worker; bytes."""
        return max(max(done["memory"], default=0) for done in self.stages.values())


def planned(ranks: int) -> SimulatedJob:
    """Return the job of a size, which has just ended. Raises ValueError for a number of ranks that cannot be.

    Agents join what comes from one multiple of the steps of a record to the next, so all records are whole.
    """
    steps = min(max(STEPS, MESSAGES // (ranks * (len(AXES) + len(BY_RANK) + 1))), MOST_STEPS)
    steps += -steps % joined_steps(ranks)  # fewer than those of a record would count as one message more
    joined_ns = joined_steps(ranks) * STEP_NS
    job = SimulatedJob(ranks, steps, time.time_ns() // joined_ns * joined_ns - (steps + 1) * STEP_NS)
    job.communicators()
    return job


def sampled(job: SimulatedJob) -> list[Communicator]:
    """Return communicators with SAMPLED messages at most, about the same part of each axis; late ones first."""
    share = SAMPLED / (job.ranks * len(AXES) * job.steps)
    chosen = []
    for axis in AXES:
        of_axis = [communicator for communicator in job.communicators() if communicator.axis == axis]
        chosen += sorted(of_axis, key=lambda c: not c.late)[: max(1, round(len(of_axis) * min(share, 1.0)))]
    return chosen


def publish(settings: Settings, size: JobSize) -> None:
    """Publish the job as fast as possible, with its lateness; set what a second of it has. Raises NotDelivered."""
    job, publisher, now = size.job, Publisher(settings, Codec(), "drumline-bench"), time.time_ns()
    hosts, chosen = Hosts(publisher), sampled(job)
    joined = joined_steps(job.ranks)
    steady, steady_s = 0, job.steps // 2 // joined * joined
    seconds = min(job.steps, max(joined, SAMPLED // job.ranks // joined * joined))
    size.shares = {
        Topic.COLLECTIVE: sum(len(c.ranks) for c in chosen) / (job.ranks * len(AXES)),
        Topic.PROGRESS: seconds / job.steps,
    }
    of_hosts = collectives(job, chosen), rank_batches(job, BY_RANK)
    for batches in (*of_hosts, rank_batches(replace(job, steps=seconds), [Topic.PROGRESS])):
        hosts.publish(batches)
    for timed in lateness(job):
        publisher.publish(timed, now)
        steady += timed.time_ns > job.begin_ns + (job.steps - steady_s) * STEP_NS
    publisher.flush()
    size.published = publisher.batches
    in_kafka = published_bytes(settings)
    for topic in SUNK:
        seconds_sent = job.steps * size.shares.get(topic, 1.0)
        size.messages[topic], size.rows[topic] = (
            publisher.batches[topic] / seconds_sent,
            (publisher.rows[topic] + hosts.rows[topic]) / seconds_sent,
        )
        size.bytes[topic] = in_kafka[topic] / seconds_sent
    size.messages[Topic.LATENESS] = steady / steady_s  # the first has many steps, as a stage waits for members then


class Hosts:
    """Publishes what the ranks of a job send as the agents of their hosts do, which join it. `rows`: by topic."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher, self._codec = publisher, Codec()
        self._joiners: dict[str, RecordJoiner] = {}
        self._now_s = 0.0
        self.rows: Counter[str] = Counter()

    def publish(self, batches: Iterable[TimedBatch]) -> None:
        """Publish batches, in the order of their times. Raises NotDelivered."""
        for timed in batches:
            if timed.time_ns / 1e9 > self._now_s:
                self._now_s = timed.time_ns / 1e9
                self._flush(due_only=True)
            batch = timed.batch
            batch.envelope["sent_ns"] = timed.time_ns
            self.rows[batch.topic] += batch.rows
            host = str(batch.envelope["host"])
            if host not in self._joiners:
                self._joiners[host] = RecordJoiner(self._send, self._codec, lambda: self._now_s)
            self._joiners[host].send(batch.topic, timed.key, self._codec.encode(batch), lambda _: None)
        self._flush(due_only=False)
        self._now_s = 0.0

    def _send(self, topic: str, key: str, value: bytes, answer: Answer, headers: tuple[Header, ...] = ()) -> bool:
        self._publisher.produce(topic, key, value, 0)
        return True

    def _flush(self, *, due_only: bool) -> None:
        for joiner in self._joiners.values():
            joiner.flush(due_only)


def measure(settings: Settings, size: JobSize, progress: Progress) -> None:
    """Publish, then drain each stage in a worker of its own, and where all was published a sink."""
    name = f"{size.job.ranks:,} ranks"
    before = server_cpu_s(settings, "broker")
    progress(f"{name}: publishing")
    publish(settings, size)
    for stage, topics in STAGES.items():
        if stage == "communicator" and size.shares[Topic.COLLECTIVE] == 1.0:
            progress(f"{name}: sink")
            _store(settings, size)
        progress(f"{name}: {stage}")
        wanted = sum(size.published[topic] for topic in topics)
        size.stages[stage] = child(settings, "stream_child", stage, wanted, most_s=STAGE_S)
        if stage == "job":
            size.named = verdict_ranks(settings)
            began = time.monotonic()
            child(settings, "stream_child", stage, 0, most_s=STAGE_S)
            size.restart_s = time.monotonic() - began
    if size.stored:
        size.stored["broker"] = (server_cpu_s(settings, "broker") - before) / size.job.steps


def _store(settings: Settings, size: JobSize) -> None:
    before = server_cpu_s(settings, "engine")
    wanted = sum(size.published[topic] for topic in SUNK)
    done = child(settings, "sink_child", ",".join(SUNK), wanted)
    spent = {"sink": done["cpu_s"], "engine": server_cpu_s(settings, "engine") - before}
    size.stored = {name: value / size.job.steps for name, value in (spent | stored_bytes(settings)).items()}


def bench_scale(ranks: Sequence[int] = RANKS, progress: Progress = lambda _: None) -> BenchReport:
    """Measure each size on a stack of its own, in ascending order. Raises RuntimeError, ValueError."""
    jobs = [planned(count) for count in sorted(ranks)]
    data = f"made-up jobs, a step a second, {sum(AXES.values())} collectives a step over {len(AXES)} communicators"
    report = BenchReport("scale", data, f"the same at {jobs[0].ranks} ranks")
    sizes: list[JobSize] = []
    for job in jobs:
        size = JobSize(planned(job.ranks))  # ended now, not before the other sizes
        with private_stack() as settings:
            name, window_steps = f"{settings.stream.app_id}-{job.ranks}", StragglerConfig().window_steps
            settings.stream = settings.stream.model_copy(update={"window_steps": window_steps, "app_id": name})
            measure(settings, size, progress)
        sizes.append(size)
        before = len(report.results)
        _add(report, sizes[0], size)
        measured = (f"{row.name.rpartition(': ')[2]} {row.value:.4g} {row.unit}" for row in report.results[before:])
        progress(f"{job.ranks:,} ranks: {'; '.join(measured)}")  # known, also where a larger size does not end
    _compare_sizes(report, sizes)
    return report


def _add(report: BenchReport, first: JobSize, size: JobSize) -> None:
    name, ranks = f"{size.job.ranks:,} ranks", size.job.ranks
    largest = size.job.ranks >= max(RANKS)
    limit = {"target": PARTITION_CORES, "at_most": True} if largest else {}
    report.add(f"{name}: messages", sum(size.messages.values()), "1/s")
    report.add(f"{name}: rows", sum(size.rows.values()), "rows/s")
    report.add(f"{name}: bytes in Kafka", sum(size.bytes.values()), "B/s")
    report.add(f"{name}: partition of the job", size.partition, "cores", **limit)
    for stage in STAGES:
        report.add(f"{name}: {stage}, CPU per message", size.message_s(stage) * 1e6, "us", first.message_s(stage) * 1e6)
        report.add(f"{name}: {stage}", size.cores(stage), "cores")
    cost, first_cost = (sum(map(s.cores, STAGES)) / s.job.ranks * 1e6 for s in (size, first))
    report.add(f"{name}: worker, CPU of a rank", cost, "us/s", first_cost)
    report.add(f"{name}: the same, reference workloads", size.rank_cost * 1e3, "1/1000 s", first.rank_cost * 1e3)
    report.add(f"{name}: CPU of a reference workload", float(size.stages["job"]["reference_s"]) * 1e3, "ms")
    memory = {"target": WORKER_MIB, "at_most": True} if largest else {}
    report.add(f"{name}: memory of a worker, most", size.memory / 2**20, "MiB", first.memory / 2**20, **memory)
    restart = {"target": RESTART_S, "at_most": True} if largest else {}
    report.add(f"{name}: restart of the job's worker", size.restart_s, "s", first.restart_s, **restart)
    late = size.job.late
    report.add(f"{name}: late rank named", int(late in size.named), "", target=1)
    report.add(f"{name}: other ranks named", len(set(size.named) - {late}), "", target=0, at_most=True)
    for consumer, value in size.stored.items():
        if consumer in ("sink", "engine", "broker"):
            report.add(f"{name}: {consumer}, CPU of a rank", value / ranks * 1e6, "us/s")
        elif value / ranks >= 1:
            report.add(f"{name}: table {consumer}", value / ranks, "B/s of a rank")
    done = {stage: values["handled"] for stage, values in size.stages.items()}
    wanted = {stage: sum(size.published[topic] for topic in topics) for stage, topics in STAGES.items()}
    part = "; ".join(f"{stage} {done[stage]:,} of {wanted[stage]:,}" for stage in STAGES if done[stage] < wanted[stage])
    report.notes.append(
        f"{name}: {size.job.steps} steps, {sum(size.published.values()):,} messages; published "
        f"{size.shares[Topic.COLLECTIVE]:.1%} of the collectives and {size.shares[Topic.PROGRESS]:.1%} of the progress"
        + (f"; handled within {STAGE_S:.0f} s: {part}" if part else "")
        + "."
    )


def _compare_sizes(report: BenchReport, sizes: Sequence[JobSize]) -> None:
    large = [size for size in sizes if size.job.ranks >= FROM_RANKS]
    if len(large) > 1:
        rises = (max(size.rank_cost for size in large[1:]) / large[0].rank_cost - 1) * 100
        name = f"CPU of a rank, highest above that at {large[0].job.ranks} ranks"
        report.add(name, rises, "%", target=WITHIN * 100, at_most=True)
    report.notes.append(
        "Each rank sends a second: a batch of collectives for each of its communicators, a step, a GPU sample, a "
        "sample of its process, and its progress. Agents of 8 ranks each join them. One rank is late by 0.1 s in each "
        "step. The messages lie in Kafka already; each stage reads them in a worker of its own, on a core of its own; "
        "broker and engine are kept off it. The stage computes the lateness of one communicator of each kind, the "
        "others get the same with their own "
        f"ranks. Windows of {StragglerConfig().window_steps} steps."
    )
    report.notes.append(
        "The partition of a job has what is keyed by the job: steps, samples, lateness and progress. Reference "
        "workloads are a fixed piece of work that each worker timed four times a second while it was measured: other "
        "programs' load changes from size to size. Sinks catch up, so their ranges are full."
    )
