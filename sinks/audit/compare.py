"""Compare replicas: count and hash the rows of each table, job by job, and the ledger by topic.

Rows are a function of Kafka's records, so they are equal. Not compared: how the ledger's ranges are cut, and its
entries of compacted topics with their rollup, of which a replica that was filled later has fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.clickhouse.retention import RETENTION_CLOCK
from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.schemas.topics import COMPACTED_TOPICS
from drumline.sinks.audit.queries import of_job_and_run
from drumline.sinks.audit.rollups import ROLLUPS
from drumline.sinks.tables.tables import TABLES

#: Table, job and run; the ledger has the topic in place of a job.
Part = tuple[str, str, str]
#: Number of rows, and the sum of their hashes, or of what a rollup counts.
Content = tuple[int, int]
#: Of the ledger; not `published`, which the sink sets where Kafka's client cannot unpack a batch. What one sink stored
#: in time may have expired for another, which was behind.
_DISPOSITION = "if(disposition = 'expired', 'stored', disposition)"
_LEDGER = f"topic_id, partition, offset, part, {_DISPOSITION}, job, run, process_id, key, sequence, rows, content"


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """A part of a table that is not equal in all replicas. `contents`: replica -> rows and hash."""

    table: str
    job: str
    run: str
    contents: dict[str, Content]

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON: the rows of each replica, and the replicas whose rows differ in content."""
        counted = {name: count for name, (count, _) in self.contents.items()}
        return {"table": self.table, "job": self.job, "run": self.run, "rows": counted}

    def text(self) -> str:
        """Return a line for a person."""
        where = " ".join(filter(None, (self.table, self.job, self.run)))
        counted = ", ".join(f"{name} {count:,}" for name, (count, _) in self.contents.items())
        equal = len({count for count, _ in self.contents.values()}) == 1
        return f"{where}: {counted} rows" + (" of other content" if equal else "")


def contents(
    client: Client, database: str, retention: RetentionSettings, now_s: float, job: str = "", run: str = ""
) -> dict[Part, Content]:
    """Return what a replica has, of one job and run ("" = all). Reads every row.

    Not those that retention removes within two hours, which each server does at a time of its own. `now_s`: the same
    for all replicas. Retry later: TransientError. Fatal: PermanentError.
    """
    parameters = {"job": job, "run": run}
    compared: dict[Part, Content] = {}
    for name, columns, value in _compared():
        if (job or run) and not {"job", "run"} <= columns:
            continue
        where = of_job_and_run(database, job, run) + _kept(name, retention, now_s)
        by = "job AS a, run AS b" if {"job", "run"} <= columns else "'' AS a, '' AS b"
        if name == "ledger":
            by = "topic AS a, '' AS b"
        if name in ("ledger", "records_per_minute"):
            where += f" AND topic NOT IN ({', '.join(repr(str(topic)) for topic in sorted(COMPACTED_TOPICS))})"
        answer = rows(client, f"SELECT {by}, {value} FROM {database}.{name} WHERE {where} GROUP BY a, b", parameters)
        compared |= {(name, str(row["a"]), str(row["b"])): (int(row["n"]), int(row["h"])) for row in answer}
    return compared


def _kept(name: str, retention: RetentionSettings, now_s: float) -> str:
    """Return the condition that retention keeps a row for two hours or more; whole hours, as rollups are cut.

    A rollup's rows may be merged or not, and the last record of a merged one is later: so their own time counts too, by
    which a minute is compared whole.
    """
    clock = RETENTION_CLOCK.get(name) or RETENTION_CLOCK[f"{name}_versions"]
    clocks = dict.fromkeys((clock, *(rollup.clock for rollup in ROLLUPS if rollup.name == name)))
    days = retention.of(name)
    since = (int(now_s) - days * 86_400) // 3_600 * 3_600 + 3 * 3_600
    return "".join(f" AND {clock} >= toDateTime({since})" for clock in clocks) if days else ""


def _compared() -> list[tuple[str, set[str], str]]:
    """Return name, columns and compared values of each table."""
    compared = []
    for stored in TABLES:
        names = [column.name for column in stored.columns]
        hashed = [name for name in names if stored.upsert or name != "published"]  # events of before had none
        compared.append((stored.name, set(names), f"count() AS n, sum(cityHash64({_hashed(hashed)})) AS h"))
    compared += [(r.name, {"job", "run"}, f"sum({r.amount}) AS n, toUInt64(0) AS h") for r in ROLLUPS]
    compared.append(("ledger", {"job", "run"}, f"count() AS n, sum(cityHash64({_LEDGER})) AS h"))
    return compared


def _hashed(names: list[str]) -> str:
    """Return the arguments of a hash in which NULL differs from every value."""
    return ", ".join(f"tuple({name})" for name in names)


def differences(replicas: Mapping[str, Mapping[Part, Content]]) -> list[ReplicaDifference]:
    """Return the parts that are not equal in all replicas, in order."""
    names = sorted({part for parts in replicas.values() for part in parts})
    compared = [(part, {name: parts.get(part, (0, 0)) for name, parts in replicas.items()}) for part in names]
    return [ReplicaDifference(*part, values) for part, values in compared if len(set(values.values())) > 1]
