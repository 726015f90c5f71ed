"""A database with a recorded job for Grafana's statements, made once per test session; and ways to change it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from support import migrated_database
from support.recordings import folder, to_present_ns

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.lab.bench.direct_load import JobCopy, load
from drumline.lab.bench.grafana_macros import PanelRequest, expand, expand_alert

JOB, RUN = "mesh-2x2", "r1"
#: Of a wide job.
RANKS = 16_384
FOLDER = folder(JOB)
_RECORDED = json.loads((FOLDER / "manifest.json").read_text())["phases"]
#: The database keeps rows as production does, so the recording is moved to the present.
SHIFT_NS = to_present_ns(_RECORDED[-1]["end_ns"])
PHASES = [{**p, "start_ns": p["start_ns"] + SHIFT_NS, "end_ns": p["end_ns"] + SHIFT_NS} for p in _RECORDED]


@dataclass
class Stored:
    """`first`, `last`: of the recording's events; s since the epoch. `healthy`: its first phase, begin and end; ns."""

    settings: Settings
    reader: Any
    writer: Any
    first: float
    last: float
    healthy: tuple[int, int]

    def frame(self, sql: str) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        """Columns with types, also of an empty answer, which names none; rows. As the user that Grafana is."""
        answer = self.reader.query(sql)
        if answer.column_names:
            columns = zip(answer.column_names, (kind.name for kind in answer.column_types), strict=True)
            return list(columns), list(answer.result_rows)
        described = self.reader.query(f"DESCRIBE TABLE ({sql})").result_rows
        return [(str(row[0]), str(row[1])) for row in described], []

    def run_alert(self, sql: str, start: float, end: float) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        return self.frame(expand_alert(sql, PanelRequest(round(start * 1000), round(end * 1000))))

    def run_panel(self, sql: str, at: PanelRequest) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        return self.frame(expand(sql, at))

    def phase(self, name: str) -> tuple[int, int]:
        """Begin and end of a phase of the recording; ns since the epoch."""
        [phase] = [phase for phase in PHASES if name in json.dumps(phase)]
        return int(phase["start_ns"]), int(phase["end_ns"])

    def copy(self, table: str, job: str, where: str = "1", **changed: str) -> None:
        """Rows of the recorded job under another job's name, with columns `changed` to expressions: a made-up fault."""
        self._insert(table, table, job, where, changed)

    def _insert(self, table: str, rows: str, job: str, where: str, changed: dict[str, str]) -> None:
        columns = [
            str(row[0])
            for row in self.writer.query(f"DESCRIBE TABLE {table}").result_rows
            if row[2] not in ("ALIAS", "MATERIALIZED")
        ]
        shown = [changed.get(name, f"'{job}'" if name == "job" else name) for name in columns]
        self.writer.command(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(shown)} FROM {rows} "
            f"WHERE job = '{JOB}' AND {where}",
            settings={"insert_deduplicate": 0, "deduplicate_blocks_in_dependent_materialized_views": 0},
        )

    def repeat(self, table: str, jobs: int, where: str = "1", **changed: str) -> None:
        """Rows of the recorded job under the names of so many jobs: job-0, job-1, ...; `n` is the number."""
        many = f"(SELECT *, arrayJoin(range({jobs})) AS n FROM {table})"
        self._insert(table, many, "", f"({where})", {"job": "concat('job-', toString(n))", **changed})

    def widen(self, table: str, new_job: str, where: str = "1", copies: int = RANKS // 4, **changed: str) -> None:
        """Rows of the recorded job's 4 ranks as those of 4 times `copies` the day before; `n` counts the copies."""
        wider = {name: f"concat({name}, '-', toString(n))" for name in ("host", "gpu_uuid", "process_id")}
        times = self.writer.query(
            f"SELECT name FROM system.columns WHERE database = currentDatabase() AND table = '{table}' "
            "AND type LIKE 'DateTime%'"
        ).result_rows
        wider |= {str(name): f"{name} - INTERVAL 1 DAY" for (name,) in times}
        many = f"(SELECT *, arrayJoin(range({copies})) AS n FROM {table} WHERE job = '{JOB}' AND {where})"
        changed = {"job": f"'{new_job}'", "rank": "if(rank < 0, -1, rank + 4 * n)"} | wider | changed
        self._insert(table, many, new_job, "1", changed)


@cache
def _loaded(state: str, settings_json: str) -> Stored:
    settings = Settings.model_validate_json(settings_json)
    migrated_database.create(settings)
    database = settings.clickhouse.database
    writer = clickhouse.connect(settings, database=database)
    load(writer, settings, JobCopy(FOLDER, JOB, RUN, shift_ns=SHIFT_NS))
    reader = clickhouse.connect(settings, reader=True, database=database)
    first, last = writer.query(  # type: ignore[attr-defined]
        "SELECT toUnixTimestamp64Milli(min(start)) / 1e3, toUnixTimestamp64Milli(max(end_time)) / 1e3 FROM kernels "
        f"WHERE job = '{JOB}'"
    ).result_rows[0]
    return Stored(settings, reader, writer, first, last, (PHASES[0]["start_ns"], PHASES[0]["end_ns"]))


def stored(stack: Settings, database: str = "gpu_grafana") -> Stored:
    """Return the job in `database`, loaded once per session. Tests that add rows use a database of their own."""
    settings = stack.model_copy(
        update={"clickhouse": stack.clickhouse.model_copy(update={"database": database, "reader": "grafana"})}
    )
    return _loaded(str(stack.local.state), settings.model_dump_json())
