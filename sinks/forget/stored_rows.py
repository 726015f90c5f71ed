"""Count and delete the rows of a job in one database, and take its names out of the ledger.

The ledger keeps a row per record: without it the sink would take a record that Kafka still has for a new one, and the
audit would miss it. The row says `forgotten`, and nothing of the job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, PermanentError, command, rows
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import Disposition

LEDGER, FORGOTTEN_JOBS, NOTICES = "ledger", "forgotten_jobs", "offender_notices_versions"
#: Of a key of a fault: it is of the job.
_NAMED = "(position(fault, {named:String}) > 0)"
#: Dead letters that name no job, but whose key does: of what could not be read only the key is known.
_KEYS = (
    "disposition = 'dead_letter' AND job = '' AND (key = {job:String} OR startsWith(key, concat({job:String}, ':')) "
    "AND match(substring(key, length({job:String}) + 2), '^[0-9a-f]{1,16}$'))"
)
_OF_JOB = f"(job = {{job:String}} OR {_KEYS})"
#: Of a forgotten row of the ledger stay place, time, size, the epochs by which halted workers are known, and the error
#: of a dead letter without a job, which `records_per_minute` still counts.
_SCRUBBED = (
    f"disposition = '{Disposition.FORGOTTEN.value}', error = if(job = '', error, ''), job = '', run = '', "
    "rank = -1, host = '', "
    "process_id = '', key = '', sequence = 0, dropped_before = 0, late_rows = 0, time_min = 0, time_max = 0, "
    "sent_ns = 0, content = 0"
)


#: Of a dead letter: name of the log, partition, offset and part of its record, 0 for all of it.
Origin = tuple[str, int, int, int]


class NotOneServer(PermanentError):
    """Fatal: the database is spread over the servers of a cluster, whose ledgers are not looked at together."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """States what a database has of a job. `rows`: by table, none with 0. `records`: of the ledger, by topic."""

    rows: Mapping[str, int]
    records: Mapping[str, int]
    hosts: tuple[str, ...] = ()


class ForgettableRows:
    """Deletes one job from one database. Every method blocks. Retry later: TransientError. Fatal: PermanentError.

    `job`: its name, of which nothing is a pattern. Raises NotOneServer.
    """

    def __init__(self, client: Client, database: str, job: str) -> None:
        self._client, self._database = client, database
        named = f"run [{json.dumps(job)}, "
        self._parameters: dict[str, Any] = {"job": job, "named": named, "d": database}
        tables = self._rows(
            "SELECT name, engine FROM system.tables WHERE database = {d:String} AND "
            "(engine LIKE '%MergeTree' OR engine = 'Distributed') AND name IN "
            "(SELECT table FROM system.columns WHERE database = {d:String} AND name = 'job') ORDER BY name"
        )
        if any(row["engine"] == "Distributed" for row in tables):
            raise NotOneServer(f"{database} is spread over a cluster: name each server's own database in turn")
        names = [str(row["name"]) for row in tables if row["name"] not in (LEDGER, FORGOTTEN_JOBS)]
        self._where = dict.fromkeys(names, "job = {job:String}")
        self._where[NOTICES] = f"arrayExists(fault -> {_NAMED}, faults)"

    def find(self) -> StoredJob:
        """Return what there is."""
        counted = " UNION ALL ".join(
            f"SELECT '{name}' AS name, count() AS n FROM {self._database}.{name} WHERE {where}"
            for name, where in self._where.items()
        )
        records = self._rows(
            f"SELECT topic, uniqExact(topic_id, partition, offset) AS n FROM {self._database}.{LEDGER} "
            f"WHERE {_OF_JOB} GROUP BY topic ORDER BY topic"
        )
        hosts = self._rows(
            f"SELECT DISTINCT host FROM {self._database}.{LEDGER} WHERE job = {{job:String}} AND host != '' "
            "ORDER BY host"
        )
        return StoredJob(
            {str(row["name"]): int(row["n"]) for row in self._rows(counted) if row["n"]},
            {str(row["topic"]): int(row["n"]) for row in records},
            tuple(str(row["host"]) for row in hosts),
        )

    def process_keys(self) -> list[tuple[int, str]]:
        """Return partition and key of the job's records in the compacted topic of processes."""
        keys = self._rows(
            f"SELECT DISTINCT partition, key FROM {self._database}.{LEDGER} "
            f"WHERE topic = '{Topic.PROCESS}' AND job = {{job:String}} AND key != ''"
        )
        return [(int(row["partition"]), str(row["key"])) for row in keys]

    def delete(self, names: Iterable[str]) -> None:
        """Delete the job's rows from tables; what is deleted is gone from the disk when it returns.

        A notice that was sent and covers other jobs too keeps theirs, else they would be sent again; its text goes.
        """
        for name in names:
            where = self._where[name]
            if name == NOTICES:
                where += f" AND (sent = 0 OR NOT arrayExists(fault -> NOT {_NAMED}, faults))"
            self._change(f"ALTER TABLE {self._database}.{name} DELETE WHERE {where}")
            if name == NOTICES:
                kept = f"faults = arrayFilter(fault -> NOT {_NAMED}, faults), body = ''"
                self._change(f"ALTER TABLE {self._database}.{name} UPDATE {kept} WHERE {self._where[name]}")

    def scrub_ledger(self) -> None:
        """Take the job's names out of the ledger."""
        self._change(f"ALTER TABLE {self._database}.{LEDGER} UPDATE {_SCRUBBED} WHERE {_OF_JOB}")

    def record(self, by: str, stored: StoredJob, keys: Mapping[str, int]) -> None:
        """Keep who deletes what, before it is deleted. `keys`: number of Kafka's keys, by kind."""
        deleted = {**stored.rows, **{f"keys of {kind}": number for kind, number in keys.items()}}
        command(
            self._client,
            f"INSERT INTO {self._database}.{FORGOTTEN_JOBS} (job, time, forgotten_by, rows, records, deleted) "
            "SELECT {job:String}, now64(6), {by:String}, {rows:UInt64}, {records:UInt64}, "
            "mapFromArrays({names:Array(String)}, {numbers:Array(UInt64)})",
            {
                **self._parameters,
                "by": by,
                "rows": sum(stored.rows.values()),
                "records": sum(stored.records.values()),
                "names": list(deleted),
                "numbers": list(deleted.values()),
            },
        )

    def only_forgotten(self, topic_ids: Mapping[str, str], lows: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return place -> (offset up to which its records are all of forgotten jobs, how many it has behind that).

        `topic_ids`: Kafka's, by topic. `lows`: place, as topic:partition, -> its first offset in Kafka. Places without
        a record of a forgotten job are left out.
        """
        source = (
            f"(SELECT concat(topic, ':', toString(partition)) AS place, offset, "
            f"disposition = '{Disposition.FORGOTTEN.value}' AS gone FROM {self._database}.{LEDGER} "
            "WHERE topic IN {topics:Array(String)} AND splitByChar('~', topic_id)[1] IN {ids:Array(String)} "
            "AND offset >= mapFromArrays({places:Array(String)}, {lows:Array(UInt64)})"
            "[concat(topic, ':', toString(partition))])"
        )
        answer = self._rows(
            "SELECT l.place AS place, any(f.other) AS other, any(f.others) AS others, max(l.offset) AS last, "
            "uniqExactIf(l.offset, gone AND f.others > 0 AND l.offset >= f.other) AS behind "
            f"FROM {source} AS l JOIN (SELECT place, minIf(offset, NOT gone) AS other, countIf(NOT gone) AS others "
            f"FROM {source} GROUP BY place HAVING countIf(gone) > 0) AS f ON l.place = f.place GROUP BY l.place",
            {
                "topics": sorted(topic_ids),
                "ids": sorted(topic_ids.values()),
                "places": list(lows),
                "lows": list(lows.values()),
            },
        )
        return {
            str(row["place"]): (int(row["other"] if row["others"] else int(row["last"]) + 1), int(row["behind"]))
            for row in answer
            if row["place"] in lows
        }

    def are_forgotten(self, topic: str, origins: Iterable[Origin]) -> set[Origin]:
        """Return those of some dead letters that the ledger has as forgotten; one of a whole record if all of it is.

        Another job may have had the offset in an older topic of the name, or have another part of the record.
        """
        wanted = set(origins)
        answer = self._rows(
            f"SELECT topic_id, partition, offset, groupArrayIf(part, disposition = '{Disposition.FORGOTTEN.value}') "
            f"AS deleted, count() AS parts FROM {self._database}.{LEDGER} WHERE topic = {{topic:String}} "
            "AND (topic_id, partition, offset) IN {places:Array(Tuple(String, UInt32, UInt64))} "
            "GROUP BY topic_id, partition, offset",
            {"topic": topic, "places": sorted({origin[:3] for origin in wanted})},
        )
        deleted: set[Origin] = set()
        for row in answer:
            record = str(row["topic_id"]), int(row["partition"]), int(row["offset"])
            deleted |= {(*record, part) for part in row["deleted"]}
            deleted |= {(*record, 0)} if len(row["deleted"]) == row["parts"] else set()
        return wanted & deleted

    def _rows(self, sql: str, more: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return rows(self._client, sql, {**self._parameters, **(more or {})})

    def _change(self, sql: str) -> None:
        command(self._client, sql, self._parameters, settings={"mutations_sync": 2})
