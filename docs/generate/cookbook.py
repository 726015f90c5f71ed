"""Write docs/reference/cookbook.md: recordings through Kafka, worker and sink of a private stack, then the queries.

`make docs` runs it. Nothing in that page is typed by hand: questions and SQL come from
`infra/clickhouse/sql`, results from here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.queries import Query, queries
from drumline.infra.config.servers import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, running_stack
from drumline.infra.runtime.processes import ManagedProcess, check_all

TESTS = Path(__file__).parents[2] / "tests"
PAGE = TESTS.parent / "docs" / "reference" / "cookbook.md"
#: Job -> recording. Their time is kept, so nothing may expire.
JOBS = {
    "demo": TESTS.parent / "infra" / "demo" / "ddp-gpu-bound",
    "mild": TESTS / "data" / "traces" / "ddp-mild",
    "fusion": TESTS / "data" / "traces" / "fusion",
}
FOR_EVER = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))
#: Windows of steps as short as the recordings' phases.
WINDOW_STEPS = 5
SHOWN = 12
Answer = tuple[list[str], list[list[str]]]

HEAD = """# The cookbook

Questions, the SQL that answers them, and what it answered. Each has a name: `drumline sql NAME --job JOB` asks it,
`drumline sql --list` names all, `--print` shows the SQL with its parameters, which the server binds. Tables, columns:
[tables.md](tables.md).

Results are those of recordings of H200s ([what was injected](../../tests/data/traces/README.md); `demo` is that of
`drumline demo`) that went through Kafka, the stream worker and the sink. `make docs` makes this page; tests run
every query.
Quantiles of kernels (p50, p95, p99) come from rollups' sketches and are within 1%; those of steps, lateness and scopes
are exact.

`--job`, `--run` (one start of the job; without, all of them), `--since`, `--until` (UTC) and `--limit` mean the same
everywhere; `drumline sql --list` names the options of each query.
"""


@contextmanager
def real_pipeline(state: Path) -> Iterator[Settings]:
    """A private stack that has stored all of JOBS. Raises RuntimeError if it was not drained."""
    settings = ephemeral_settings(
        state,
        clickhouse=ClickHouseSettings(retention=FOR_EVER),
        stream=StreamSettings(window_steps=WINDOW_STEPS, instance="cookbook", metrics_port=0),
        sink=SinkSettings(instance="cookbook", metrics_port=0),
    )
    with running_stack(settings):
        private = environment(settings)
        programs = [ManagedProcess(name, [name], state / f"{name}.log", private) for name in ("stream", "sink")]
        try:
            for program in programs:
                program.start()
            for job, folder in JOBS.items():
                command = [sys.executable, "-m", "drumline.infra.cli.app", "replay", str(folder), "--job", job]
                subprocess.run(
                    [*command, "--speed", "max", "--keep-time", "--json"], env=private, check=True, capture_output=True
                )
            waited = wait_stored(settings, 400, lambda: check_all(programs))
            if not waited:
                raise RuntimeError(f"not drained: {waited.reason}")
        finally:
            for program in programs:
                program.stop()
        yield settings


def asker(settings: Settings) -> Callable[[Query], Answer]:
    """Asks a query with its example's parameters, as the reader: column names, and rows as text."""
    client = clickhouse.connect(settings, reader=True, database=settings.clickhouse.database)

    def run_query(query: Query) -> Answer:
        answer = client.raw_query(query.sql, parameters=query.values(query.example), fmt="JSONCompactStrings")
        answer_json: dict[str, Any] = json.loads(answer)
        return [column["name"] for column in answer_json["meta"]], [
            [_cell(cell) for cell in row] for row in answer_json["data"]
        ]

    return run_query


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def example(query: Query, given: Mapping[str, str]) -> str:
    """The command of a query's example."""
    return " ".join(["drumline sql", query.name, *(f"--{name} {value}" for name, value in given.items())])


def page(run_query: Callable[[Query], Answer]) -> str:
    """The page's text."""
    parts, theme = [HEAD], ""
    for query in queries().values():
        if query.theme != theme:
            theme = query.theme
            parts.append(f"## {theme}\n")
        parts.append(_recipe(query, *run_query(query)))
    return "\n".join(parts)


def _recipe(query: Query, names: list[str], rows: list[list[str]]) -> str:
    lines = [f"### {query.question}", "", f"`{example(query, query.example)}`", ""]
    lines += [query.notes, ""] if query.notes else []
    special = [p for p in query.parameters if p.about and p.name not in ("job", "run", "since", "until", "limit")]
    lines += [f"- `--{p.name}`: {p.about}" + (f" (default {p.default})" if p.default else "") for p in special]
    lines += [""] if special else []
    lines += ["```sql", query.sql, "```", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows[:SHOWN]]
    lines += [f"\n... {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "\n".join([*lines, ""])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="drumline-cookbook-") as folder, real_pipeline(Path(folder)) as settings:
        PAGE.write_text(page(asker(settings)))
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
