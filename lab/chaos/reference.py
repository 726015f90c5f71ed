"""Computes the results of an undisturbed run, stores them separately, and compares the results of killed runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse.client import INSERT_SETTINGS, Client, rows
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.config.settings import Settings
from drumline.infra.runtime.stage import Stage
from drumline.lab.chaos.load import JOB
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.tables.tables import table
from drumline.streams.offline import results
from drumline.streams.worker.app import wirings

RESULTS = (Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH, Topic.LATENESS, Topic.STRAGGLER)
#: Columns that differ between two runs of the same recording: ids, places in Kafka, revisions.
RUN_COLUMNS = "run, process_id, revision, published, _topic_partition, _offset, _row"
#: Topic -> condition without the rows that follow a minute after the end of a run, if an episode is open then.
LATE_ROWS = {Topic.STRAGGLER: "detail != 'silent'"}
RUN = "reference"


@dataclass(frozen=True, slots=True)
class Difference:
    """Counts the result rows of one table and run: expected, missing, and unexpected ones."""

    table: str
    rows: int
    missing: int
    extra: int
    example: str = ""

    @property
    def equal(self) -> bool:
        """Return whether no row is missing or unexpected."""
        return not self.missing and not self.extra


def reference_results(settings: Settings, folder: Path, loops: int) -> dict[Topic, list[Batch]]:
    """Return all result batches, by topic, in the order in which they became ready.

    The stages run as if every topic had one partition and no program was ever killed.
    """
    stages: list[tuple[Collection[str], Stage]] = [
        (wiring.inputs, wiring.build({}))  # type: ignore[arg-type]  # a plain dict holds the state as well
        for wiring in wirings(settings)
    ]
    batches = RecordedJob(folder, job=JOB, loop=loops).batches(run=RUN)
    batches_by_topic: dict[Topic, list[Batch]] = {topic: [] for topic in RESULTS}
    for batch in results(((o.time_ns, o.batch) for o in batches), stages, round(settings.stream.idle_s * 1e9)):
        batches_by_topic[Topic(batch.topic)].append(batch)
    return batches_by_topic


class ReferenceRun:
    """Holds the undisturbed results, read through the same tables and views as those of the killed programs."""

    def __init__(self, settings: Settings, client: Client, results: dict[Topic, list[Batch]]) -> None:
        self._client, self._database = client, settings.clickhouse.database
        separate = settings.clickhouse.model_copy(update={"database": f"{self._database}_reference"})
        migrate(client, settings.model_copy(update={"clickhouse": separate}))
        codec, now_ms = Codec(), round(time.time() * 1_000)  # retention counts from then
        for topic, batches in results.items():  # encoded and decoded: defaults are filled in then
            full = [codec.decode(topic, codec.encode(batch)) for batch in batches if batch.rows]
            _, block = rows_block(table(topic), "reference:0", full, range(len(full)), [now_ms] * len(full))
            client.raw_insert(
                f"{separate.database}.{table(topic).target}",
                column_names=[column.name for column in table(topic).columns],
                insert_block=block,
                fmt="Native",
                settings=INSERT_SETTINGS,
            )
        self._expected = {topic: result_rows(client, separate.database, topic, RUN) for topic in results}

    def compare(self, run: str) -> list[Difference]:
        """Return the differences of a run, one a table."""
        return [
            compare_rows(topic, expected, result_rows(self._client, self._database, topic, run))
            for topic, expected in self._expected.items()
        ]


def result_rows(client: Client, database: str, topic: Topic, run: str) -> Counter[str]:
    """Return the stored results of a run, without what differs between two runs of the same recording."""
    sql = f"SELECT * EXCEPT ({RUN_COLUMNS}) FROM {database}.{table(topic).name} WHERE run = {{run:String}}"
    sql += f" AND {LATE_ROWS[topic]}" if topic in LATE_ROWS else ""
    stored: list[dict[str, Any]] = rows(client, sql, {"run": run})
    return Counter(repr(row) for row in stored)


def compare_rows(topic: Topic, expected: Counter[str], stored: Counter[str]) -> Difference:
    """Return the difference of a table's rows."""
    missing, extra = expected - stored, stored - expected
    example = next(iter([*missing, *extra]), "")
    return Difference(table(topic).name, expected.total(), missing.total(), extra.total(), example)
