"""Makes up a large job as its agents publish it: a step a second on every rank, 50 collectives over 3 communicators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.producers.replay.recording import TimedBatch
from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.codec import Codec, Received
from drumline.schemas.keys import derived_process_id, record_key
from drumline.schemas.parts.joining import interval_s
from drumline.schemas.record_table import RecordTable
from drumline.schemas.topics import Topic
from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results

STEP_NS, LATE_NS = 1_000_000_000, 100_000_000
RANKS_PER_HOST = 8
#: Collectives a step of each rank, by the axis of its communicator: tensor-parallel peers, the ranks of one replica of
#: the model, and the same part of all replicas.
AXES = {"tensor": 32, "model": 8, "data": 10}
#: Sizes of (tensor group, replica), the largest that leaves two replicas.
SHAPES = ((8, 128), (8, 16), (2, 2))
#: Columns of a step that are not known here.
UNKNOWN = ("copy_pageable_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns")


@dataclass(frozen=True)
class Communicator:
    """Describes a communicator. `ranks`: rising. `pattern`: index of the members that come late in it, by `late_of`."""

    name: str
    axis: str
    ranks: tuple[int, ...]
    late: frozenset[int]

    @property
    def pattern(self) -> tuple[str, int, tuple[int, ...]]:
        """Return what communicators have in common whose lateness is the same but for the numbers of the ranks."""
        return self.axis, len(self.ranks), tuple(i for i, rank in enumerate(self.ranks) if rank in self.late)


@dataclass(frozen=True)
class SimulatedJob:
    """Describes a job of `ranks` ranks and `steps` steps that began at `begin_ns`. One rank is late in each step.

    Raises ValueError for a number of ranks that has no even number of replicas.
    """

    ranks: int
    steps: int
    begin_ns: int
    name: str = "scale"

    @property
    def shape(self) -> tuple[int, int]:
        """Return the ranks of a tensor-parallel group and of a replica."""
        for tensor, replica in SHAPES:
            if self.ranks % replica == 0 and self.ranks >= 2 * replica:
                return tensor, replica
        raise ValueError(f"{self.ranks} ranks: an even number of 4 or more is needed")

    @property
    def late(self) -> int:
        """Return the rank that is late: the first of the replica in the middle."""
        _, replica = self.shape
        return self.ranks // replica // 2 * replica

    def communicators(self) -> list[Communicator]:
        """Return all communicators, in the order of AXES.

        Who waits for the late rank in one axis is late in the next one, with the late rank.
        """
        tensor, replica = self.shape
        ranks = np.arange(self.ranks)
        number_of = {"tensor": ranks // tensor, "model": ranks // replica, "data": ranks % replica}
        communicators, late = [], {self.late}
        for axis in AXES:
            groups = np.argsort(number_of[axis], kind="stable").reshape(int(number_of[axis].max()) + 1, -1)
            then = frozenset(late)
            for number, members in enumerate(groups.tolist()):
                code = list(AXES).index(axis) + 1
                communicators.append(
                    Communicator(f"{code:x}{number:015x}", axis, tuple(members), then & frozenset(members))
                )
                if late & set(members):
                    late |= set(members)
        return communicators

    def head(self, rank: int, sequence: int, now_ns: int) -> dict[str, Any]:
        """Return the envelope that all batches of a rank have."""
        return {
            "job": self.name, "run": self.name, "rank": rank, "local_rank": rank % RANKS_PER_HOST,
            "world_size": self.ranks, "host": _host(rank), "gpu_uuid": _gpu(rank),
            "process_id": f"00000000-0000-5000-8000-{rank:012x}", "sequence": sequence, "base_time_ns": now_ns,
            "watermark_ns": now_ns,
        }  # fmt: skip


def joined_steps(ranks: int) -> int:
    """Return the steps of a record of a host, which joins its ranks' batches: those of a job of `ranks` ranks."""
    return max(1, round(interval_s(ranks) * 1e9 / STEP_NS))


def _host(rank: int) -> str:
    return f"host{rank // RANKS_PER_HOST:05d}"


def _gpu(rank: int) -> str:
    return f"GPU-{rank:08x}-0000-0000-0000-000000000000"


def rank_batches(job: SimulatedJob, topics: Sequence[Topic]) -> Iterator[TimedBatch]:
    """Yield a batch of each rank, step and topic of STEP, DEVICE, HOST and PROGRESS, by step."""
    communicators_of: dict[int, list[tuple[Communicator, int]]] = {rank: [] for rank in range(job.ranks)}
    for communicator in job.communicators():
        for index, rank in enumerate(communicator.ranks):
            communicators_of[rank].append((communicator, index))
    columns = {Topic.STEP: _step, Topic.DEVICE: _sample, Topic.HOST: _process}
    for step in range(job.steps):
        begin, end = job.begin_ns + step * STEP_NS, job.begin_ns + (step + 1) * STEP_NS
        for rank in range(job.ranks):
            for topic in topics:
                head = job.head(rank, step, begin)
                if topic is Topic.PROGRESS:
                    batch = _progress(head, communicators_of[rank], step, end)
                else:
                    row = columns[topic](job, rank, step, begin)
                    more = {"complete_step": step, "steps_from": "marker"} if topic is Topic.STEP else {}
                    batch = Batch(topic, {**head, **more, "rows": 1}, {n: np.array([v]) for n, v in row.items()})
                yield TimedBatch(end, record_key(batch), batch)


def _step(job: SimulatedJob, rank: int, step: int, begin: int) -> dict[str, int]:
    waited = 20_000_000 + LATE_NS * (rank != job.late) + (rank * 7_919 + step * 104_729) % 1_000_000
    row = dict.fromkeys(UNKNOWN, -1)
    row |= {"step": step, "start_ns": begin, "duration_ns": STEP_NS, "gpu_start_ns": begin, "gpu_duration_ns": STEP_NS}
    row |= {"compute_ns": STEP_NS * 7 // 10, "comm_exposed_ns": waited, "comm_ns": waited}
    row |= {"copy_ns": 0, "copy_total_ns": 0, "compute_overlapped_ns": 0, "skipped": 0}
    row |= {"idle_ns": STEP_NS * 3 // 10 - waited, "kernels": 1_000, "blocks": 100_000}
    row["collectives"] = sum(AXES.values())
    return row


def _sample(_job: SimulatedJob, rank: int, step: int, begin: int) -> dict[str, int]:
    row = {"time_ns": begin, "util_gpu": 98, "util_memory": 50, "memory_used": 70 << 30, "memory_total": 80 << 30}
    row |= {"power_mw": 650_000 + rank % 1_000, "energy_mj": 10**9 + step * 650_000, "temperature": 60 + rank % 8}
    row |= {"sm_clock": 1_980, "memory_clock": 2_619, "throttle_reasons": 0, "ecc_uncorrected": 0, "xid": 0, "fan": -1}
    row |= {"pcie_rx_kbps": 1_000, "pcie_tx_kbps": 1_000, "nvlink_rx_kbps": 10**7, "nvlink_tx_kbps": 10**7}
    return row | {"processes": 1, "job_util_sm": 98}


def _process(_job: SimulatedJob, rank: int, step: int, begin: int) -> dict[str, int]:
    row = {"time_ns": begin, "interval_ns": STEP_NS, "main_cpu_ns": 400_000_000 + rank % 1_000, "main_wait_ns": 10_000}
    return row | {"other_cpu_ns": 900_000_000 + step, "threads": 40, "rss_bytes": 10 << 30, "major_faults": 0}


def _progress(head: dict[str, Any], places: list[tuple[Communicator, int]], step: int, end: int) -> Batch:
    called = np.array([AXES[communicator.axis] * (step + 1) for communicator, _ in places])
    zeros = np.zeros(len(places), np.int64)
    columns = {
        "start_ns": zeros + end, "communicator": np.arange(len(places)),
        "comm_rank": np.array([index for _, index in places]),
        "ranks": np.array([len(communicator.ranks) for communicator, _ in places]), "peer": zeros - 1,
        "called": called, "begun": called, "ended": called, "exact": zeros + 1, "closed": zeros,
        "operation": zeros, "datatype": zeros, "elements": zeros + 1_000, "bytes": zeros + 4_000,
        "last_operation": zeros, "last_datatype": zeros, "last_elements": zeros + 1_000, "step": zeros + step,
        "quiet_ns": zeros, "state": zeros,
    }  # fmt: skip
    lists = {"operations": ["AllReduce"], "datatypes": ["float32"], "states": ["running"]}
    lists |= {"last_operations": ["AllReduce"], "last_datatypes": ["float32"]}
    names = [communicator.name for communicator, _ in places]
    return Batch(Topic.PROGRESS, {**head, **lists, "communicators": names, "rows": len(places)}, columns)


def collectives(job: SimulatedJob, communicators: Sequence[Communicator]) -> Iterator[TimedBatch]:
    """Yield the batches of collectives of these communicators, by step: one of each member."""
    for step in range(job.steps):
        begin, end = job.begin_ns + step * STEP_NS, job.begin_ns + (step + 1) * STEP_NS
        for communicator in communicators:
            for rank, columns in zip(communicator.ranks, _member_columns(communicator, step, begin), strict=True):
                head = {**job.head(rank, step, begin), "communicator": communicator.name, "operations": ["AllReduce"]}
                batch = Batch(Topic.COLLECTIVE, {**head, "complete_step": step, "rows": len(columns["step"])}, columns)
                yield TimedBatch(end, record_key(batch), batch)


def _member_columns(communicator: Communicator, step: int, begin: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of each member: all wait in the first collective for those that are late."""
    count = AXES[communicator.axis]
    dice = np.random.default_rng((step, len(communicator.ranks)))
    delays = dice.integers(0, 200_000, (len(communicator.ranks), count))
    delays -= delays.min(0)
    late = np.array([rank in communicator.late for rank in communicator.ranks])
    if late.any() and not late.all():
        delays[~late, 0] += LATE_NS
        delays[late, 0] = 0
    at = list(AXES).index(communicator.axis) * STEP_NS // len(AXES) + begin
    start = at + np.arange(count) * (STEP_NS // len(AXES) // count)
    shared = {"step": np.full(count, step), "ordinal": np.arange(count), "bytes": np.full(count, 1 << 20)}
    shared |= {"covered_ns": np.zeros(count, np.int64), "operation": np.zeros(count, "u1")}
    for delay in delays:
        yield {**shared, "start_ns": start, "duration_ns": 500_000 + delay}


def lateness(job: SimulatedJob) -> Iterator[TimedBatch]:
    """Yield the lateness of all communicators, by step.

    The real stage evaluates one communicator of each pattern. All others of that pattern get the same rows, with
    their ranks.
    """
    communicators = job.communicators()
    first = {communicator.pattern: communicator for communicator in reversed(communicators)}
    lateness_of = {pattern: _evaluated(job, communicator) for pattern, communicator in first.items()}
    for number in range(max(map(len, lateness_of.values()))):
        for communicator in communicators:
            if number < len(lateness_of[communicator.pattern]):
                batch = _moved(lateness_of[communicator.pattern][number], first[communicator.pattern], communicator)
                end_ns = job.begin_ns + (int(batch.envelope["complete_step"]) + 1) * STEP_NS
                yield TimedBatch(end_ns, record_key(batch), batch)


def _evaluated(job: SimulatedJob, communicator: Communicator) -> list[Batch]:
    config = StragglerConfig()
    stage = CommunicatorStage({}, config)
    return list(results(_merged(job, communicator), [((Topic.COLLECTIVE,), stage)], config.idle_ns))


def _merged(job: SimulatedJob, communicator: Communicator) -> Iterator[tuple[int, RecordTable]]:
    """Yield (time, table) of the collectives of a communicator as the agents of its hosts join them."""
    codec, steps = Codec(), joined_steps(job.ranks)
    values: dict[str, list[bytes]] = {}
    number = len(communicator.ranks) * steps
    for count, timed in enumerate(collectives(job, [communicator]), 1):
        values.setdefault(str(timed.batch.envelope["host"]), []).append(codec.encode(timed.batch))
        if count % number == 0 or count == len(communicator.ranks) * job.steps:
            for batches in values.values():
                record = codec.open(Topic.COLLECTIVE, Received(codec.merge(Topic.COLLECTIVE, batches)))
                yield timed.time_ns, codec.read(Topic.COLLECTIVE, [record])
            values = {}


def _moved(batch: Batch, source: Communicator, target: Communicator) -> Batch:
    """Return a batch of one communicator as that of another: the members have the same places."""
    moved = np.array(target.ranks)[np.searchsorted(source.ranks, batch.envelope["rank_list"])].tolist()
    names = {name: dictionary(of(rank) for rank in moved)[0] for name, of in (("hosts", _host), ("gpu_uuids", _gpu))}
    envelope = {**batch.envelope, **names, "communicator": target.name, "rank_list": moved}
    key = run_key(envelope["job"], envelope["run"])
    envelope["process_id"] = derived_process_id(Topic.LATENESS, target.name, key)
    rank = np.array(target.ranks)[np.searchsorted(source.ranks, batch.columns["rank"])]
    return Batch(batch.topic, envelope, {**batch.columns, "rank": rank})
