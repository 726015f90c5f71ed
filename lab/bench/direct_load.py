"""Loads recorded jobs into a real engine without Kafka, and multiplies them inside the engine.

The stream stages and the sink's block writer run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drumline.infra.clickhouse.client import INSERT_SETTINGS, Client, command, rows
from drumline.infra.config.settings import Settings, SinkSettings
from drumline.infra.runtime.stage import Stage
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.pending_range import PendingRange
from drumline.sinks.tables.blocks import row_count, time_span
from drumline.sinks.tables.tables import TABLES, table
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.memcpy_bandwidth import MemcpyBandwidth
from drumline.streams.windows.stage import ProcessWindows

FLUSH_ROWS = SinkSettings().flush_rows
PROCESSES = table(Topic.PROCESS).target


def stages(config: StragglerConfig) -> list[tuple[Collection[str], Stage]]:
    """Return the stream worker's stages, each over one partition."""
    windows = WindowConfig()
    return [
        ((Topic.KERNEL,), ProcessWindows({}, windows, KernelFrequency())),
        ((Topic.MEMCPY,), ProcessWindows({}, windows, MemcpyBandwidth())),
        ((Topic.COLLECTIVE,), CommunicatorStage({}, config)),
        ((Topic.LATENESS, Topic.STEP, Topic.DEVICE, Topic.HOST), JobStage({}, config)),
    ]


@dataclass
class Loader:
    """Writes batches in ranges of FLUSH_ROWS, as a sink with one partition would.

    mark: prefix of the topic ids.
    rows: rows stored so far, by topic.
    """

    client: Client
    settings: Settings
    mark: str = "load"
    rows: dict[str, int] = field(default_factory=dict)
    _held: dict[Topic, list[RangeEntry]] = field(default_factory=dict)
    _next: dict[Topic, int] = field(default_factory=dict)
    _codec: Codec = field(default_factory=Codec)
    _names: KernelNames = field(default_factory=KernelNames)

    def take(self, batch: Batch, key: str, time_ns: int) -> None:
        """Add a batch to the open range of its topic; insert the range when it is full."""
        topic = Topic(batch.topic)
        stored, batch = table(topic), self._codec.decode(topic, self._codec.encode(batch))
        rows = row_count(stored, batch)
        first, last = time_span(stored, batch)
        offset = self._next.get(topic, 0)
        self._next[topic] = offset + 1
        record = Record(topic, 0, offset, key.encode(), None, time_ns // 1_000_000, [])
        disposition = Disposition.STORED if rows else Disposition.EMPTY
        held = self._held.setdefault(topic, [])
        held.append(RangeEntry(record, 0, batch, disposition, rows, first, last))
        if sum(entry.rows for entry in held) >= FLUSH_ROWS or len(held) >= 5_000:
            self.flush(topic)

    def flush(self, topic: Topic) -> None:
        """Insert the open range of a topic and its ledger rows."""
        held = self._held.pop(topic, [])
        if not held:
            return
        span = OffsetRange(f"{self.mark}-{topic}", 0, held[0].record.offset, held[-1].record.offset)
        pending = PendingRange(table(topic), span, held)
        writer = RangeWriter(self.client, self.settings.clickhouse.database, self._names)
        self.rows[topic] = self.rows.get(topic, 0) + writer.insert_rows(pending)
        writer.insert_ledger(pending)

    def flush_all(self) -> None:
        """Insert the open ranges of all topics."""
        for topic in list(self._held):
            self.flush(topic)


@dataclass(frozen=True)
class JobCopy:
    """Describes how a recorded job is loaded: its new name, number of ranks, and shift in time."""

    folder: Path
    job: str
    run: str
    ranks: int | None = None
    shift_ns: int = 0


def load(client: Client, settings: Settings, copy: JobCopy) -> dict[str, int]:
    """Store a recorded job and all derived rows that the stream stages make of it; return rows by topic."""
    config = StragglerConfig(window_steps=5)
    loader = Loader(client, settings, f"{copy.job}-{copy.run}")
    recording = RecordedJob(copy.folder, job=copy.job, ranks=copy.ranks)

    def raw() -> Iterator[tuple[int, Batch]]:
        for out in recording.batches(copy.run, copy.shift_ns):
            loader.take(out.batch, out.key, out.time_ns)
            yield out.time_ns, out.batch

    now = recording.last_ns + copy.shift_ns
    for batch in results(raw(), stages(config), config.idle_ns):
        key = str(batch.envelope["process_id"] or copy.job)
        loader.take(batch, key, int(batch.envelope.get("window_end_ns") or now))
    loader.flush_all()
    return loader.rows


@dataclass(frozen=True)
class Repetition:
    """Describes `times` copies of the job `source` as `job`, each `period_ns` and `steps` after the one before."""

    source: str
    job: str
    times: int
    period_ns: int
    steps: int


def repeat(client: Client, database: str, copies: Repetition, progress: Callable[[int], None]) -> None:
    """Copy all stored rows of a job inside the engine; rollups count them.

    Stores what a looped replay would, without its Python and its stream stages.
    """
    tables = rows(
        client,
        "SELECT table, groupArray((name, type)) AS columns FROM system.columns WHERE database = {d:String} "
        "AND default_kind = '' AND table IN {tables:Array(String)} GROUP BY table",
        {"d": database, "tables": [*(known.target for known in TABLES), "ledger"]},
    )
    next_id = f"SELECT max(id) + 1 AS n FROM {database}.ranges WHERE job = {{j:String}}"
    ids = int(rows(client, next_id, {"j": copies.source})[0]["n"])
    for number in range(copies.times):
        for row in tables:
            period_ns = 0 if row["table"] == PROCESSES else copies.period_ns  # they live through all
            names = ", ".join(name for name, _ in row["columns"])
            columns = ", ".join(
                moved(name, kind, copies.job, number * period_ns, number * copies.steps, number * ids)
                for name, kind in row["columns"]
            )
            command(
                client,
                f"INSERT INTO {database}.{row['table']} ({names}) SELECT {columns} FROM {database}.{row['table']} AS r "
                "WHERE r.job = {source:String}",
                {"source": copies.source},
                settings={**INSERT_SETTINGS, "insert_deduplicate": 0},
            )
        progress(number + 1)


def moved(name: str, kind: str, job: str, time_ns: int, steps: int, ids: int) -> str:
    """Return the expression that moves a column to the next repetition.

    Unique values stay unique: ids of ranges, and collectives outside of steps (step -1) by their ordinal.
    """
    if name == "job":
        return f"'{job}'"
    if kind.startswith("DateTime64"):
        return f"if(toUnixTimestamp(r.{name}) = 0, r.{name}, addNanoseconds(r.{name}, {time_ns}))"  # 0: none
    if name in ("id", "parent_id"):
        return f"if(r.{name} = 0, 0, r.{name} + {ids})"
    if name == "ordinal":
        return f"r.{name} + if(r.step < 0, {steps} * 1000, 0)"
    if name == "step" or name.endswith("_step"):
        return f"if(r.{name} < 0, r.{name}, r.{name} + {steps})"
    return f"r.{name}"
