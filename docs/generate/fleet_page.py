"""Write docs/results/fleet.md: what a fleet needs, from the results that benchmarks wrote to docs/results/bench."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from page import NOTE, REFERENCE, table, write

from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import DAY_MS, TOPICS, Topic

RESULTS = REFERENCE.parent / "results"
PAGE = RESULTS / "fleet.md"
FLEETS = (1_024, 4_096, 16_384, 100_000)
SMALL = (8, 64, 256)
#: Share of a core that a program may use in steady state: the rest catches up after a restart.
BUSY = 0.7
#: Machine that is counted: cores. Replicas of a Kafka record.
MACHINE_CORES, REPLICAS = 16, 3
#: Topic -> days for which Kafka keeps its records.
KAFKA_DAYS = {spec.topic: spec.retention_ms // DAY_MS for spec in TOPICS}
PROGRAMS = ("worker", "sink", "engine", "broker")
_ROW = re.compile(r"^\| ([^|]+) \| (-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) [^|]*\|", re.MULTILINE)
DAY_S = 86_400
HEAD = """# What a fleet needs

How many cores, how much memory, bandwidth and disk do 8 to 100,000 GPUs take, and what do you buy? This page is
computed from results in `bench/`; [scale](bench/scale.md) names machine, load and commit of its run. A fleet runs jobs
of at most {largest} ranks here: of the measured sizes, the largest whose partition one core carries.

"""
#: Program -> its name in docs/results/bench/soak.md.
SOAKED = {"worker": "stream", "sink": "sink", "engine": "engine", "broker": "broker"}


def results(name: str) -> dict[str, float]:
    """Return metric -> value of a page of docs/results/bench. Raises OSError."""
    rows = _ROW.findall((RESULTS / "bench" / f"{name}.md").read_text())
    return {metric.strip(): float(value.replace(",", "")) for metric, value in rows}


@dataclass(frozen=True)
class Cost:
    """Holds what a GPU takes: CPU seconds a second by program, Kafka B/s (zstd, one replica), rows/s, messages/s.

    `disk`: B/s by table. `days`: for which Kafka keeps them.
    """

    cpu: dict[str, float]
    kafka: float
    rows: float
    messages: float
    disk: dict[str, float] = field(default_factory=dict)
    days: float = 0.0

    @property
    def in_kafka(self) -> float:
        """Return the bytes in Kafka, all replicas."""
        return self.kafka * self.days * DAY_S * REPLICAS

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both."""
        cpu, disk = ({n: a.get(n, 0.0) + b.get(n, 0.0) for n in {**a, **b}}
                     for a, b in ((self.cpu, other.cpu), (self.disk, other.disk)))  # fmt: skip
        kafka = self.kafka + other.kafka
        days = (self.kafka * self.days + other.kafka * other.days) / kafka
        return Cost(cpu, kafka, self.rows + other.rows, self.messages + other.messages, disk, days)

    def kept_bytes(self) -> float:
        """Return the bytes on ClickHouse's disk once retention removes as much as comes."""
        kept = RetentionSettings().model_dump()
        return sum(rate * DAY_S * kept.get(name.removesuffix("_versions"), max(kept.values()))
                   for name, rate in self.disk.items())  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Answers from docs/results/bench/scale.md."""

    values: dict[str, float]

    @property
    def sizes(self) -> list[int]:
        """Return the measured numbers of ranks, rising."""
        names = {name.partition(" ranks: ")[0] for name in self.values if " ranks: messages" in name}
        return sorted(int(text.replace(",", "")) for text in names)

    def of(self, ranks: int, metric: str) -> float:
        """Return a metric of a measured size."""
        return self.values[f"{ranks:,} ranks: {metric}"]

    def nearest(self, ranks: int) -> int:
        """Return the measured size at or above `ranks`; the largest where there is none."""
        return next((size for size in self.sizes if size >= ranks), self.sizes[-1])

    @property
    def largest_job(self) -> int:
        """Return the largest measured size whose partition one core carries."""
        return max(size for size in self.sizes if self.of(size, "partition of the job") <= 1.0)

    @property
    def stored(self) -> int:
        """Return the largest size whose storage was measured."""
        return max(size for size in self.sizes if f"{size:,} ranks: sink, CPU of a rank" in self.values)

    def cost(self, ranks: int) -> Cost:
        """Return what a rank takes without CUPTI, in jobs of at most `largest_job` ranks."""
        return self.at(min(self.nearest(ranks), self.largest_job), self.stored)

    def dearer(self, ranks: int) -> Cost:
        """Return what a rank of a small fleet takes: the dearer of the measured sizes beside `ranks`."""
        sizes = [size for size in self.sizes if size <= self.stored]
        below = max(size for size in sizes if size <= ranks)
        costs = [self.at(size, size) for size in {below, self.nearest(ranks)}]
        return max(costs, key=lambda cost: sum(cost.cpu.values()))

    def at(self, size: int, stored: int) -> Cost:
        """Return what a rank takes: worker and Kafka by the measured `size`, storage by the size `stored`."""
        cpu = {"worker": self.of(size, "worker, CPU of a rank") / 1e6}
        cpu |= {name: self.of(stored, f"{name}, CPU of a rank") / 1e6 for name in PROGRAMS[1:]}
        mark = f"{stored:,} ranks: table "
        disk = {name.removeprefix(mark): value for name, value in self.values.items() if name.startswith(mark)}
        rates = (self.of(size, metric) / size for metric in ("bytes in Kafka", "rows", "messages"))
        return Cost(cpu, *rates, disk, KAFKA_DAYS[Topic.COLLECTIVE])


def cupti(pipeline: dict[str, float], codec: dict[str, float]) -> Cost:
    """Return what CUPTI at every step adds for a rank: kernels, copies and ranges of the recorded job at its speed."""
    recording = RecordedJob(DEMO_RECORDING)
    ranks = len(recording.rank_sources)
    seconds = (recording.last_ns - recording.first_ns) / 1e9 * ranks
    rows = {topic: recording.rows[topic] / seconds for topic in (Topic.KERNEL, Topic.MEMCPY, Topic.RANGE)}
    million = sum(rows.values()) / 1e6
    names = {"worker": "stream", "sink": "sink", "engine": "engine", "broker": "broker"}
    cpu = {name: pipeline[f"CPU per million rows: {column}"] * million for name, column in names.items()}
    kafka = codec["zstd bytes a row, Avro arrays"] * million * 1e6
    row_bytes = pipeline["bytes a row on disk, kernels, as left"]
    disk = {name: row_bytes * rows[topic] for name, topic in
            (("kernels", Topic.KERNEL), ("memcpys", Topic.MEMCPY), ("ranges", Topic.RANGE))}  # fmt: skip
    messages = million * 1e6 * pipeline["messages"] / pipeline["all rows"]
    return Cost(cpu, kafka, million * 1e6, messages, disk, KAFKA_DAYS[Topic.KERNEL])


def needs(costs: dict[int, Cost]) -> str:
    """Return the table of a policy: a column for each fleet."""
    lines: list[list[str]] = [
        ["messages/s", *(_short(n * c.messages) for n, c in costs.items())],
        ["rows/s", *(_short(n * c.rows) for n, c in costs.items())],
        ["Kafka, MB/s, one replica, zstd", *(_number(n * c.kafka / 1e6) for n, c in costs.items())],
        [f"Kafka, TB kept, {REPLICAS} replicas", *(_number(n * c.in_kafka / 1e12) for n, c in costs.items())],
        *([f"{name}, cores", *(_number(n * c.cpu[name]) for n, c in costs.items())] for name in PROGRAMS),
        ["cores in all", *(_number(n * sum(c.cpu.values())) for n, c in costs.items())],
        ["cores a GPU, 1/1000", *(_number(sum(c.cpu.values()) * 1e3) for c in costs.values())],
        ["ClickHouse, TB/day", *(_number(n * sum(c.disk.values()) * DAY_S / 1e12) for n, c in costs.items())],
        ["ClickHouse, TB kept, one replica", *(_number(n * c.kept_bytes() / 1e12) for n, c in costs.items())],
    ]  # fmt: skip
    return table(["", *(f"{n:,} GPUs" for n in costs)], lines)


def small(scale: Scale, more: Cost, soak: dict[str, float], agent: dict[str, float]) -> str:
    """Return the part about fleets that fit one machine, or a few."""
    light = {n: scale.dearer(n) for n in SMALL}
    lines = []
    for policy, costs in (("light", light), ("CUPTI", {n: cost.plus(more) for n, cost in light.items()})):
        lines += [
            [f"{policy}: {name}, cores", *(_number(n * c.cpu[name]) for n, c in costs.items())] for name in PROGRAMS
        ]
        lines += [
            [f"{policy}: Kafka, GB kept", *(_number(n * c.in_kafka / REPLICAS / 1e9) for n, c in costs.items())],
            [
                f"{policy}: ClickHouse, GB/day",
                *(_number(n * sum(c.disk.values()) * DAY_S / 1e9) for n, c in costs.items()),
            ],
            [f"{policy}: ClickHouse, GB kept", *(_number(n * c.kept_bytes() / 1e9) for n, c in costs.items())],
        ]
    memory = ", ".join(f"{name} {soak[f'memory of {program}, most']:.0f}" for name, program in SOAKED.items())
    return f"""## 8 to 256 GPUs

One program of each kind, one replica, the retention of the settings. `light` is recording without CUPTI, `CUPTI` is
policy `always` on all ranks. A size between two measured ones takes the figures of the dearer one.

{table(["", *(f"{n:,} GPUs" for n in SMALL)], lines)}
Memory, MiB at most in an hour of {soak["kernels"]:,.0f} kernels/s: {memory}. An agent takes
{agent["CPU of the agent"]:g} cores and {agent["memory of the agent, most"]:.0f} MB for 8 ranks with
{agent["kernels written"]:,.0f} kernels/s. The days for which data stays decide the disk:
`DRUMLINE_CLICKHOUSE__RETENTION`.

"""


def purchase(costs: dict[int, Cost]) -> str:
    """Return what to buy for each fleet, with the share BUSY of each core used."""
    lines = []
    for n, cost in costs.items():
        cores = {name: max(1, math.ceil(n * cost.cpu[name] / BUSY)) for name in PROGRAMS}
        brokers = max(REPLICAS, math.ceil(cores["broker"] * REPLICAS / MACHINE_CORES))
        shards = max(1, math.ceil(cores["engine"] / MACHINE_CORES))
        lines.append([
            f"{n:,}", f"{cores['worker']:,}", f"{cores['sink']:,}",
            f"{brokers:,} with {_number(n * cost.in_kafka / 1e12 / brokers)} TB each",
            f"{shards:,} with {_number(n * cost.kept_bytes() / 1e12 / shards)} TB each",
        ])  # fmt: skip
    return table(["GPUs", "workers, a core each", "sinks, a core each", "Kafka brokers", "ClickHouse shards"], lines)


def page() -> str:
    """Return the page's text."""
    scale, pipeline, codec = Scale(results("scale")), results("pipeline"), results("codec")
    light = {fleet: scale.cost(fleet) for fleet in FLEETS}
    more = cupti(pipeline, codec)
    always = {fleet: cost.plus(more) for fleet, cost in light.items()}
    parts = [NOTE.format(name="fleet_page"), HEAD.format(largest=f"{scale.largest_job:,}")]
    parts.append(small(scale, more, results("soak"), results("agent")))
    parts += ["## Without CUPTI: collectives, steps and samples\n\n", needs(light), "\n", purchase(light), "\n"]
    parts += ["## With CUPTI at every step: kernels and copies too\n\n", needs(always), "\n", purchase(always), "\n"]
    return "".join([*parts, _growth(scale, light, always), _sources(scale)])


def _growth(scale: Scale, light: dict[int, Cost], always: dict[int, Cost]) -> str:
    measured = {size: scale.of(size, "partition of the job") for size in scale.sizes}
    fits = [size for size, cores in measured.items() if cores <= BUSY]
    largest = fits[-1] if fits else 0
    beyond = next((size for size in measured if size > largest), None)
    rows = [[f"{size:,}", _number(cores), "yes" if cores <= BUSY else "**no**"] for size, cores in measured.items()]
    limit = math.floor(BUSY / (measured[beyond or largest] / (beyond or largest)))
    fleet = max(light)
    workers, more = (math.ceil(fleet * costs[fleet].cpu["worker"] / BUSY) for costs in (light, always))
    return f"""## The largest job

All steps, samples and lateness of one job lie in one partition, so one core must carry them.

{table(["ranks of the job", "cores of its partition", f"at most {BUSY:g}"], rows)}
By these figures a job of about {limit:,} ranks takes {BUSY:g} of a core. A larger fleet of smaller jobs spreads over
partitions.

## How it grows

- **Partitions:** as many as workers, or more, as each worker needs one: {workers:,} for {fleet:,}
  GPUs, {more:,} with CUPTI. `DRUMLINE_KAFKA__PARTITIONS` holds for all topics that workers read, and
  `DRUMLINE_KAFKA__TOPIC_PARTITIONS` for single other ones. Choose it at the start.
- **Workers:** cores / {BUSY:g}. Communicators and processes spread by their keys; a job's partition does not.
- **Sinks:** cores / {BUSY:g}, at most one a partition. They wait for ClickHouse more than they compute.
- **Brokers:** {REPLICAS} replicas cost the CPU and disk of each. Disk grows with retention, not with consumers.
- **Shards:** a machine of {MACHINE_CORES} cores each. `Distributed` tables spread a job's rows.

"""


def _sources(scale: Scale) -> str:
    return f"""## Where the figures come from

| figure | from |
|---|---|
| messages, rows, bytes in Kafka, CPU of workers | [scale](bench/scale.md), {scale.largest_job:,} ranks |
| CPU of sink, engine, broker; bytes of tables | [scale](bench/scale.md), {scale.stored:,} ranks; sinks catch up |
| kernels, copies and ranges a rank sends | the demo's recording at its own speed |
| their CPU, by program; bytes on disk | [pipeline](bench/pipeline.md), a burst of full ranges |
| their bytes in Kafka | [codec](bench/codec.md) |
| days in Kafka and ClickHouse | the defaults of topics and [settings](../reference/settings.md) |

Repeat: `drumline bench scale --write docs/results/bench/scale.md`, then `make docs`. Not in it: agents on the hosts
([agent](bench/agent.md)), queries, merges of weeks, replicas of ClickHouse, and growth of cores by uneven keys.
"""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


if __name__ == "__main__":
    write(PAGE, page())
