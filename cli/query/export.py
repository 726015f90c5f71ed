"""`drumline export`: the tables of a job as Parquet or Arrow files."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

app = typer.Typer(add_completion=False)


class Form(StrEnum):
    """Formats of files."""

    PARQUET = "parquet"
    ARROW = "arrow"


@app.command()
def export(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql jobs` lists them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to; it is created.")],
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table, several times for more: steps, stragglers, kernels, ...")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Format of the files.")] = Form.PARQUET,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write the rows of a run, a file for each table: verdicts, hangs, steps, collectives, kernels, samples, ...

    Columns are those of the tables (`drumline sql "DESCRIBE stragglers"`). A table of more than 5 million rows has
    several files, by ranks: TABLE-0000.parquet, ... Readers such as pyarrow, Polars and DuckDB take them as one.
    manifest.json, written last, lists files and rows. Files of the same names are replaced. The local engine is
    started if it is down.

    Exit codes: 0 written. 1 ClickHouse does not answer. 2 no such job, run or table, or a file cannot be written.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.export.job_tables import NoSuchTable, TableFile
    from drumline.views.export.job_tables import export as write
    from drumline.views.report.data import NoSuchRun

    def show(file: TableFile) -> None:
        if not as_json:
            echo(f"{output / file.name}: {file.rows:,} rows, {max(1, round(file.bytes / 1e3)):,} kB", flush=True)

    config = settings()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        exit_with("export", BAD_INPUT, f"{output}: {error.strerror}")
    with (
        exit_on_error("export", NoSuchRun, NoSuchTable, OSError, code=BAD_INPUT),
        exit_on_error("export", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
        try:
            written = write(client, job, run, table or (), form.value, output, show)
        finally:
            client.close()
    if as_json:
        echo(json.dumps(json.loads(written.manifest()) | {"path": str(output.resolve())}))
    elif not written.files:
        echo(f"{escape_controls(job)}, run {escape_controls(written.run)}: no rows in these tables")
