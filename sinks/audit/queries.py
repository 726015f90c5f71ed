"""Query ClickHouse for the audit; audit.py evaluates the rows.

`_where` is a condition on job and run that holds for ledger and tables alike. Records whose rows retention may have
removed are left out, and counted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.config.settings import Settings
from drumline.schemas.parts.joining import JOINED_BY_AGENTS, MOST_PARTS
from drumline.schemas.topics import DAY_MS
from drumline.sinks.audit.rollups import Rollup, comparison
from drumline.sinks.inserts.ledger import Ledger
from drumline.sinks.ranges.disposition import UNREADABLE
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.stored_tail import StoredTail
from drumline.sinks.tables.tables import SinkTable

SHOWN = 5
_UNREADABLE = f"(disposition = 'dead_letter' AND error = '{UNREADABLE}')"


def of_job_and_run(database: str, job: str, run: str) -> str:
    """Return the condition on rows of a job and run; "" = all. The id of a Slurm job stands for all its attempts."""
    attempts = f"SELECT run FROM {database}.processes_versions WHERE slurm_job = {{run:String}}"
    parts = ["job = {job:String}"] * bool(job) + [f"(run = {{run:String}} OR run IN ({attempts}))"] * bool(run)
    return " AND ".join(parts) or "1"


@dataclass
class Queries:
    """Holds the audit's queries for one job and run ("" = all); see `of_job_and_run`.

    Every method blocks for one or two queries. Retry later: TransientError. Fatal: PermanentError.
    """

    client: Client
    settings: Settings
    job: str = ""
    run: str = ""

    @property
    def database(self) -> str:
        """Return the name of the database."""
        return self.settings.clickhouse.database

    def _parameters(self, **more: object) -> dict[str, object]:
        return {"job": self.job, "run": self.run, **more}

    def _where(self) -> str:
        return of_job_and_run(self.database, self.job, self.run)

    def _is_old(self, table: SinkTable) -> str:
        """Return the condition on ledger rows that retention may have removed the rows of their record."""
        days = self.settings.clickhouse.retention.of(table.name)
        return f"published < now64(3) - INTERVAL {days} DAY" if days else "false"

    def ledger_since_ms(self, now_s: float) -> int:
        """Return the time of publication before which retention may have removed ledger rows; ms since the epoch."""
        days = self.settings.clickhouse.retention.of("ledger")
        return round(now_s * 1_000) - days * DAY_MS if days else 0

    def has_ledger_rows(self) -> bool:
        """Return True if the ledger has a record of the job and run; without either it is always true."""
        query = f"SELECT 1 FROM {self.database}.ledger WHERE {self._where()} LIMIT 1"
        return self._where() == "1" or bool(rows(self.client, query, self._parameters()))

    def forgotten(self) -> str:
        """Return when, and by whom, the job was deleted, "" if it was not."""
        known = rows(
            self.client,
            "SELECT formatDateTime(time, '%F %R') AS at, forgotten_by AS by "
            f"FROM {self.database}.forgotten_jobs WHERE job = {{job:String}} ORDER BY time DESC LIMIT 1",
            self._parameters(),
        )
        return f"{known[0]['by']} deleted its data on {known[0]['at']} UTC (drumline forget)" if known else ""

    def nearest_job(self) -> str:
        """Return the stored job whose name is most like the wanted one, "" for none."""
        known = rows(self.client, f"SELECT DISTINCT job FROM {self.database}.ledger WHERE job != ''")
        close = difflib.get_close_matches(self.job, [str(row["job"]) for row in known], n=1)
        return close[0] if close else ""

    def records(self) -> list[dict[str, Any]]:
        """Return ledger rows per topic, partition and incarnation, by disposition; `first` is the lowest offset.

        `records`: of different places; a part of a record counts as one, a batch that cannot be unpacked as its
        offsets.
        """
        return rows(
            self.client,
            f"WITH sumIf(range_last - offset, {_UNREADABLE}) AS behind "
            "SELECT topic, topic_id, partition, count() + behind AS entries, "
            "uniqExact(offset, part) + behind AS records, "
            "countIf(disposition = 'stored') AS stored, countIf(disposition = 'empty') AS empty, "
            "countIf(disposition = 'duplicate') AS duplicate, countIf(disposition = 'fenced') AS fenced, "
            "countIf(disposition = 'expired') AS expired, countIf(disposition = 'forgotten') AS forgotten, "
            "countIf(disposition = 'dead_letter') + behind AS dead, "
            "min(offset) AS first "
            f"FROM {self.database}.ledger GROUP BY topic, topic_id, partition",
        )

    def expired_rows(self) -> dict[str, int]:
        """Return the rows that were older than their table keeps rows when they came, by topic: no table has them."""
        counted = rows(
            self.client,
            "SELECT topic, sum(r) AS n FROM (SELECT topic, max(toUInt64(l.rows)) AS r "
            f"FROM {self.database}.ledger AS l WHERE disposition = 'expired' AND {self._where()} "
            "GROUP BY topic, topic_id, partition, offset, part) GROUP BY topic",
            self._parameters(),
        )
        return {str(row["topic"]): int(row["n"]) for row in counted}

    def tails(self, places: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str, int], StoredTail]:
        """Return the last record of each place that the ledger has; see `Ledger.tails`."""
        return Ledger(self.client, self.database).tails(list(places))

    def covered(self, topic: str, topic_id: str, partition: int, first: int, last: int) -> Intervals:
        """Return the offsets of first..last that the ledger has, with all of a batch that cannot be unpacked."""
        place: dict[str, object] = {"t": topic, "id": topic_id, "p": partition, "a": first, "b": last}
        batches = rows(
            self.client,
            "SELECT DISTINCT greatest(offset, {a:UInt64}) AS a, least(range_last, {b:UInt64}) AS b "
            f"FROM {self.database}.ledger WHERE topic = {{t:String}} AND topic_id = {{id:String}} "
            f"AND partition = {{p:UInt32}} AND {_UNREADABLE} AND offset <= {{b:UInt64}} AND range_last >= {{a:UInt64}}",
            place,
        )
        intervals = rows(
            self.client,
            "SELECT min(offset) AS a, max(offset) AS b FROM (SELECT offset, "
            "toInt64(offset) - row_number() OVER (ORDER BY offset) AS island FROM (SELECT DISTINCT offset "
            f"FROM {self.database}.ledger WHERE topic = {{t:String}} AND topic_id = {{id:String}} "
            "AND partition = {p:UInt32} AND offset BETWEEN {a:UInt64} AND {b:UInt64})) GROUP BY island ORDER BY a",
            place,
        )
        return Intervals.union((int(row["a"]), int(row["b"])) for row in (*intervals, *batches))

    def unreadable(self, table: SinkTable) -> dict[str, int]:
        """Return the number of batches that dead letters without a process, hence without a sequence, may be, by key.

        One that is a whole record may have had MOST_PARTS batches where agents join them.
        """
        most = MOST_PARTS if table.topic in JOINED_BY_AGENTS else 1
        counted = rows(
            self.client,
            "SELECT key, uniqExactIf((topic_id, partition, offset, part), part > 0) "
            f"+ {most} * uniqExactIf((topic_id, partition, offset), part = 0) AS n FROM {self.database}.ledger "
            "WHERE topic = {topic:String} AND disposition = 'dead_letter' AND process_id = '' GROUP BY key",
            {"topic": table.topic.value},
        )
        return {str(row["key"]): int(row["n"]) for row in counted}

    def any_rows(self, table: SinkTable) -> bool:
        """Return True if the table has rows of any run."""
        return bool(rows(self.client, f"SELECT 1 FROM {self.database}.{table.target} LIMIT 1"))

    def stored_rows(self, table: SinkTable) -> dict[str, Any]:
        """Compare the rows that are stored according to the ledger with the rows of the table, record by record.

        `bad`: records that differ or whose rows are not numbered 0, 1, 2, ... once each. `examples`: (topic
        id:partition, offset, rows that should exist, rows that exist).
        """
        bad = "expired = 0 AND (want != have OR have != numbers OR (have > 0 AND top != have - 1))"
        totals = rows(
            self.client,
            f"SELECT sumIf(want, expired = 0) AS published, sumIf(have, expired = 0) AS kept, countIf({bad}) AS bad, "
            "sumIf(want, expired = 1) AS expired_rows, countIf(expired = 0 AND have > want) AS more, "
            f"groupArraySortedIf({SHOWN})((place, offset, want, have), {bad}) AS examples FROM ("
            "SELECT place, offset, max(w) AS want, max(h) AS have, max(u) AS numbers, max(t) AS top, max(e) AS expired "
            "FROM ("
            "SELECT concat(topic_id, ':', toString(partition)) AS place, offset, sum(r) AS w, "
            "toUInt64(0) AS h, toUInt64(0) AS u, toUInt64(0) AS t, max(old) AS e FROM ("
            "SELECT topic_id, partition, offset, part, max(toUInt64(l.rows)) AS r, "
            f"max({self._is_old(table)}) AS old FROM {self.database}.ledger AS l "
            f"WHERE topic = {{topic:String}} AND disposition = 'stored' AND {self._where()} "
            "GROUP BY topic_id, partition, offset, part) GROUP BY place, offset UNION ALL "
            "SELECT _topic_partition, _offset, 0, count(), uniqExact(_row), max(_row), 0 "
            f"FROM {self.database}.{table.name} WHERE {self._where()} GROUP BY 1, 2) GROUP BY place, offset)",
            self._parameters(topic=table.topic.value),
        )
        return totals[0]

    def newest_rows(self, table: SinkTable) -> dict[str, Any]:
        """Compare ledger and table where rows replace each other.

        `missing`: newest stored records that left no row. `expired_rows`: of those that are older than retention.
        `unknown`: rows from records that the ledger does not have as stored. `newest`: rows that the view shows.
        """
        totals = rows(
            self.client,
            "SELECT countIf(gone AND expired = 0) AS missing, sumIf(size, gone AND expired = 1) AS expired_rows, "
            "countIf(stored = 0) AS unknown, sum(have) AS versions FROM ("
            "SELECT place, offset, max(s) AS stored, sum(h) AS have, max(n) = 1 AND have = 0 AS gone, "
            "max(e) AS expired, sum(r) AS size FROM ("
            "SELECT concat(topic_id, ':', toString(partition)) AS place, offset, 1 AS s, "
            "offset = max(offset) OVER (PARTITION BY topic_id, partition, process_id, key) AS n, toUInt64(0) AS h, "
            f"{self._is_old(table)} AS e, toUInt64(l.rows) AS r FROM {self.database}.ledger AS l "
            f"WHERE topic = {{topic:String}} AND disposition = 'stored' AND {self._where()} "
            "UNION ALL SELECT _topic_partition, _offset, 0, 0, count(), 0, 0 "
            f"FROM {self.database}.{table.target} WHERE {self._where()} GROUP BY 1, 2) GROUP BY place, offset)",
            self._parameters(topic=table.topic.value),
        )
        shown = rows(
            self.client,
            f"SELECT count() AS newest FROM {self.database}.{table.name} WHERE {self._where()}",
            self._parameters(),
        )
        return {**totals[0], **shown[0]}

    def sequences(self, table: SinkTable) -> list[dict[str, Any]]:
        """Return (process, key) pairs whose sequence has gaps, is stored twice, or is known from duplicates only.

        `contents`: stored sequences, each as often as it has different contents; batches without rows have no hash, and
        differ by their run and time. `unlike`: duplicates with another content than what is stored; only where every
        stored record has a hash.
        """
        seen = "disposition IN ('stored', 'empty')"
        return rows(
            self.client,
            f"SELECT topic, process_id, key, any(job) AS of_job, any(run) AS of_run, countIf({seen}) AS batches, "
            f"uniqExactIf(sequence, {seen}) AS sequences, "
            f"uniqExactIf((sequence, content, job, run, sent_ns), {seen}) AS contents, "
            f"if(countIf(disposition = 'stored' AND content = 0) > 0, 0, toInt64(uniqExactIf((sequence, content), "
            "rows > 0)) - toInt64(uniqExactIf((sequence, content), rows > 0 AND disposition != 'duplicate'))) "
            "AS unlike, "
            f"uniqExactIf(sequence, {seen} OR disposition IN ('dead_letter', 'expired')) AS known, "
            "uniqExact(sequence) AS mentioned, max(sequence) + 1 AS length, any(partition) AS place "
            f"FROM {self.database}.ledger WHERE topic = {{topic:String}} AND process_id != '' AND {self._where()} "
            "GROUP BY topic, process_id, key "
            "HAVING batches != sequences OR known != length OR mentioned != known OR unlike > 0",
            self._parameters(topic=table.topic.value),
        )

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return the rows that stay on their hosts (policy rollup), by process, as its newest record states them.

        `in_windows`: kernels in non-overlapping windows, which the host counted.
        """
        ns = "toUnixTimestamp64Nano"
        counted = rows(
            self.client,
            "SELECT p.process_id AS process_id, p.job AS job, p.run AS run, p.host AS host, p.rank AS rank, "
            "toUInt64OrZero(p.collector['kept_kernels']) AS kernels, "
            "toUInt64OrZero(p.collector['kept_copies']) AS copies, "
            "toUInt64OrZero(p.collector['kept_ranges']) AS ranges, w.counted AS in_windows "
            f"FROM (SELECT * FROM {self.database}.processes "
            f"WHERE mapContains(collector, 'kept_kernels') AND {self._where()}) AS p "
            f"LEFT JOIN (SELECT process_id, sum(launches) AS counted FROM {self.database}.kernel_frequency "
            f"WHERE {self._where()} AND modulo({ns}(window_start), {ns}(window_end) - {ns}(window_start)) = 0 "
            "GROUP BY process_id) AS w ON p.process_id = w.process_id ORDER BY process_id",
            self._parameters(),
        )
        return {str(row["process_id"]): row for row in counted}

    def wrongly_fenced(self, table: SinkTable) -> int:
        """Return the results that are fenced without an earlier one of a higher epoch, or stored behind one."""
        counted = rows(
            self.client,
            "SELECT count() AS n FROM (SELECT disposition, epoch, max(epoch) OVER "
            "(PARTITION BY topic_id, partition, source ORDER BY offset ROWS UNBOUNDED PRECEDING) AS highest "
            f"FROM {self.database}.ledger WHERE topic = {{topic:String}} AND source != '') "
            "WHERE disposition != 'forgotten' AND (disposition = 'fenced') != (epoch < highest)",
            {"topic": table.topic.value},
        )
        return int(counted[0]["n"])

    def fenced_sources(self, table: SinkTable) -> list[str]:
        """Return the sources whose newest results, of more than a minute, are all fenced.

        A halted worker ends sooner: something sent an epoch that no worker reaches.
        """
        fenced = rows(
            self.client,
            "SELECT source FROM (SELECT source, disposition, published, maxIf(offset, disposition != 'fenced') OVER "
            "(PARTITION BY topic_id, partition, source) AS newest, offset, topic_id, partition "
            f"FROM {self.database}.ledger WHERE topic = {{topic:String}} AND source != '') WHERE offset > newest "
            "GROUP BY topic_id, partition, source HAVING max(published) > min(published) + INTERVAL 1 MINUTE "
            "ORDER BY source",
            {"topic": table.topic.value},
        )
        return [str(row["source"]) for row in fenced]

    def dropped(self) -> list[dict[str, Any]]:
        """Return the rows that producers report as lost before publication, per topic and run."""
        return rows(
            self.client,
            "SELECT topic, job AS of_job, run AS of_run, sum(dropped_before) AS dropped "
            f"FROM {self.database}.ledger WHERE disposition IN ('stored', 'empty', 'expired') AND {self._where()} "
            "GROUP BY topic, of_job, of_run HAVING dropped > 0 ORDER BY dropped DESC",
            self._parameters(),
        )

    def windows(self, raw: SinkTable, windows: SinkTable, amount: str) -> list[dict[str, Any]]:
        """Compare raw rows with windows, per process.

        Returns raw rows, those in windows closed so far, and the sum over non-overlapping windows plus the late rows.
        `dead_rows`: rows of batches that only the tables cannot hold (a row beyond 2106), which the stream processor
        may have counted. Processes with rows or windows that retention may have removed are left out.
        """
        ns = "toUnixTimestamp64Nano"
        return rows(
            self.client,
            "SELECT process_id, any(of_job) AS job, any(of_run) AS run, count() AS raw_rows, "
            "countIf(start < horizon) AS closed, any(counted) AS in_windows, any(late) AS late_rows, "
            "any(dead) AS dead_rows FROM ("
            "SELECT r.process_id AS process_id, r.job AS of_job, r.run AS of_run, r.start AS start, "
            "w.horizon AS horizon, w.counted AS counted, l.late AS late, d.dead AS dead "
            f"FROM (SELECT process_id, job, run, start FROM {self.database}.{raw.name} WHERE {self._where()}) AS r "
            f"LEFT JOIN (SELECT process_id, sum({amount}) AS counted, max(window_end) AS horizon "
            f"FROM {self.database}.{windows.name} WHERE {self._where()} "
            f"AND modulo({ns}(window_start), {ns}(window_end) - {ns}(window_start)) = 0 GROUP BY process_id) AS w "
            "ON r.process_id = w.process_id "
            f"LEFT JOIN (SELECT process_id, max(late_rows) AS late FROM {self.database}.ledger "
            "WHERE topic = {windows:String} GROUP BY process_id) AS l ON r.process_id = l.process_id "
            f"LEFT JOIN (SELECT process_id, sum(rows) AS dead FROM {self.database}.ledger "
            "WHERE topic = {raw:String} AND disposition = 'dead_letter' GROUP BY process_id) AS d "
            "ON r.process_id = d.process_id "
            f"WHERE r.process_id NOT IN (SELECT process_id FROM {self.database}.ledger "
            "WHERE disposition = 'expired' AND topic IN ({raw:String}, {windows:String}) OR disposition = 'stored' "
            f"AND (topic = {{raw:String}} AND {self._is_old(raw)} "
            f"OR topic = {{windows:String}} AND {self._is_old(windows)}))) GROUP BY process_id",
            self._parameters(windows=windows.topic.value, raw=raw.topic.value),
        )

    def rollups(self, rollup: Rollup) -> list[dict[str, Any]]:
        """Compare a rollup with the ledger, per job and run; columns: see `comparison`."""
        sql = comparison(rollup, self.database, self._where(), self.settings.clickhouse.retention)
        return rows(self.client, sql, self._parameters())
