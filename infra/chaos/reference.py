"""What an undisturbed computation gives, in tables of its own, and how what the killed programs stored differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.infra.chaos.load import JOB
from drumline.infra.clickhouse.client import INSERT_SETTINGS, Client, rows
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.config.settings import Settings
from drumline.producers.replay.recording import recorded_batches
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.tables.tables import table
from drumline.streams.core.stage import Stage
from drumline.streams.offline import results
from drumline.streams.worker.app import wirings

RESULTS = (Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH, Topic.LATENESS, Topic.STRAGGLER)
#: What two runs of the same recording have of their own: ids, places in Kafka, how often a window was sent.
OWN = "run, process_id, revision, published, _topic_partition, _offset, _row"
#: What is said a minute after the end of a run, if an alarm is standing then: nobody waits for it here.
LATER = {Topic.STRAGGLER: "detail != 'silent'"}
RUN = "calm"


@dataclass(frozen=True, slots=True)
class Difference:
    """Result rows of one table and run: those there should be, those missing, those that should not be there."""

    table: str
    rows: int
    missing: int
    extra: int
    example: str = ""

    @property
    def equal(self) -> bool:
        return not self.missing and not self.extra


def undisturbed(settings: Settings, folder: Path, loops: int) -> dict[Topic, list[Batch]]:
    """All result batches, by topic, in the order in which they became ready, as if every topic had one partition and
    nobody ever died."""
    stages: list[tuple[Collection[str], Stage]] = [
        (wiring.inputs, wiring.build({}))  # type: ignore[arg-type]  # a plain dict holds the state as well
        for wiring in wirings(settings)
    ]
    batches = recorded_batches(folder, job=JOB, run=RUN, loop=loops)
    found: dict[Topic, list[Batch]] = {topic: [] for topic in RESULTS}
    for batch in results(((o.time_ns, o.batch) for o in batches), stages, round(settings.stream.idle_s * 1e9)):
        found[Topic(batch.topic)].append(batch)
    return found


class Calm:
    """The undisturbed results in a database of their own, so that both pass through the same tables and views."""

    def __init__(self, settings: Settings, client: Client, results: dict[Topic, list[Batch]]) -> None:
        self._client, self._database = client, settings.clickhouse.database
        apart = settings.clickhouse.model_copy(update={"database": f"{self._database}_calm"})
        migrate(client, settings.model_copy(update={"clickhouse": apart}))
        codec = Codec()
        for topic, batches in results.items():  # encoded and decoded: defaults are filled in then
            full = [codec.decode(topic, codec.encode(batch)) for batch in batches if batch.rows]
            _, block = rows_block(table(topic), "calm:0", full, range(len(full)), [0] * len(full))
            client.raw_insert(
                f"{apart.database}.{table(topic).target}",
                column_names=[column.name for column in table(topic).columns],
                insert_block=block,
                fmt="Native",
                settings=INSERT_SETTINGS,
            )
        self._expected = {topic: self._rows(apart.database, topic, RUN) for topic in results}

    def _rows(self, database: str, topic: Topic, run: str) -> Counter[str]:
        sql = f"SELECT * EXCEPT ({OWN}) FROM {database}.{table(topic).name} WHERE run = {{run:String}}"
        sql += f" AND {LATER[topic]}" if topic in LATER else ""
        found: list[dict[str, Any]] = rows(self._client, sql, {"run": run})
        return Counter(repr(row) for row in found)

    def compare(self, run: str) -> list[Difference]:
        """One a table."""
        found = []
        for topic, expected in self._expected.items():
            stored = self._rows(self._database, topic, run)
            missing, extra = expected - stored, stored - expected
            example = next(iter([*missing, *extra]), "")
            name = table(topic).name
            found.append(Difference(name, expected.total(), missing.total(), extra.total(), example))
        return found
