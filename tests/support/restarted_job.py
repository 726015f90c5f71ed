"""A job on two hosts that restarts under one run name, as its agents publish it: fake sources, no GPU."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Producer
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.producers.batching.process_record import process_batch
from drumline.producers.identity import Identity
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic

SECOND = 1_000_000_000
#: Time of the simulator's first step.
EPOCH_NS = 10**18
#: From the start of the processes to their first step.
STARTING_NS = 2 * SECOND


@dataclass(frozen=True)
class Start:
    """One attempt: `begin_ns`, when its first process starts; `lost`: ranks whose last records never came.

    `runs`: rank -> run name, where it is not the same on all.
    """

    begin_ns: int
    ranks: int = 4
    steps: int = 40
    first_step: int = 0
    late: int = -1
    lost: tuple[int, ...] = ()
    is_stated: bool = True
    runs: dict[int, str] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        """Return a time behind its last row: a step takes 0.1 s at most."""
        return self.begin_ns + STARTING_NS + self.steps * 110 * MS


def identities(job: str, run: str, start: Start) -> list[Identity]:
    """Return the processes of an attempt: two hosts, ranks by blocks, each started a little after the one before."""
    out = []
    for rank in range(start.ranks):
        started_ns, host = start.begin_ns + rank * 10 * MS, f"{job}-h{rank * 2 // start.ranks}"
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{job}/{run}/{rank}/{started_ns}"))
        out.append(
            Identity(
                job=job, run=start.runs.get(rank, run), rank=rank, local_rank=rank % 2, world_size=start.ranks,
                host=host, gpu_uuid=f"GPU-{job}-{rank}", process_id=name, pid=100 + rank, start_ns=started_ns,
                source="nccl",
            )
        )  # fmt: skip
    return out


def published(job: str, run: str, start: Start, seed: int = 0) -> list[tuple[int, Batch]]:
    """Return (time, batch) of all that an attempt publishes, by time, without sequences."""
    faults = (Fault(start.late, "idle", 40 * MS, first=5),) if start.late >= 0 else ()
    recording = simulate(ddp(start.ranks, 1), start.steps, faults, step_ns=50 * MS, seed=seed)
    known, shift = identities(job, run, start), start.begin_ns + STARTING_NS - EPOCH_NS
    out = [(process.start_ns, process_batch(process)) for process in known]
    for time_ns, batch in batches(recording):
        process, columns, head = known[batch.envelope["rank"]], batch.columns, batch.envelope
        last = head["complete_step"]
        if process.rank in start.lost and last >= start.steps - 4:
            continue
        columns["start_ns"] = columns["start_ns"] + shift
        columns["step"] = columns["step"] + start.first_step
        if batch.topic == Topic.STEP:
            columns["gpu_start_ns"], head["steps_from"] = columns["start_ns"].copy(), "marker"
        head |= process.envelope() | {
            "source": "nccl",
            "process_start_ns": process.start_ns if start.is_stated else 0,
            "complete_step": last + start.first_step,
            "base_time_ns": int(columns["start_ns"].min()),
            "watermark_ns": int(columns["start_ns"].max()),
            "sent_ns": time_ns + shift,
        }
        out.append((time_ns + shift, batch))
    return sorted(out, key=lambda item: item[0])


def restarted(job: str, run: str, starts: Iterable[Start]) -> list[tuple[int, Batch]]:
    """Return what all attempts of a job publish, with sequences."""
    sequences: Counter[tuple[str, ...]] = Counter()
    out = []
    for number, start in enumerate(starts):
        for time_ns, batch in published(job, run, start, seed=number):
            place = batch.envelope["process_id"], batch.topic, record_key(batch)
            batch.envelope["sequence"] = sequences[place]
            sequences[place] += 1
            out.append((time_ns, batch))
    return out


def publish(settings: Settings, stream: Iterable[tuple[int, Batch]]) -> None:
    """Send batches to Kafka, and wait until it has them."""
    producer, codec = Producer(producer_config(settings, "fake source")), Codec()
    for _, batch in stream:
        producer.produce(batch.topic, value=codec.encode(batch), key=record_key(batch))
        producer.poll(0)
    assert producer.flush(60) == 0
