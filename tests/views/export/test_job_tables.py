"""Files of a run: the rows that the tables have, read by a library that knows no ClickHouse."""

import json

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from support import drumline_program, migrated_database, stored_job

from drumline.infra.clickhouse.client import connect, rows
from drumline.views.export import job_tables
from drumline.views.export.job_tables import NoSuchTable, export
from drumline.views.report.data import NoSuchRun

pytestmark = pytest.mark.stack


@pytest.fixture
def client(clean_stack):
    migrated_database.create(clean_stack)
    stored_job.store(clean_stack)
    opened = connect(clean_stack, reader=True, database=clean_stack.clickhouse.database)
    yield opened
    opened.close()


def counts(client):
    """Table -> rows of the job, of those that have some."""
    tables = ("steps", "stragglers", "lateness", "kernels", "memcpys", "device_samples", "processes")
    sql, values = "SELECT count() AS n FROM {} WHERE job = {{job:String}}", {"job": stored_job.JOB}
    return {table: rows(client, sql.format(table), values)[0]["n"] for table in tables}


@pytest.mark.parametrize(("form", "read"), [("parquet", pyarrow.parquet.read_table), ("arrow", pa.feather.read_table)])
def test_files_have_the_rows_of_the_tables(client, tmp_path, form, read):
    written = export(client, stored_job.JOB, "", (), form, tmp_path)
    assert written.run == "r1"
    assert {file.table: file.rows for file in written.files} == {t: int(n) for t, n in counts(client).items()}
    for file in written.files:
        table = read(tmp_path / file.name)
        assert table.num_rows == file.rows
        assert set(table["job"].to_pylist()) == {stored_job.JOB}
    assert json.loads((tmp_path / "manifest.json").read_text())["files"][0]["table"]
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", *(file.name for file in written.files)}
    verdicts = read(tmp_path / f"stragglers.{form}")
    assert set(verdicts["severity"].to_pylist()) == {"ok", "critical"}, "an enumeration is text"
    assert pa.types.is_timestamp(verdicts.schema.field("window_start").type)
    assert sum(verdicts["gpu_seconds_lost"].to_pylist()) == pytest.approx(1.0)


def test_a_large_table_has_several_files_by_ranks_that_are_read_as_one(client, tmp_path, monkeypatch):
    monkeypatch.setattr(job_tables, "MOST_ROWS", 50)
    written = export(client, stored_job.JOB, "", ["steps"], "parquet", tmp_path)
    assert [(file.name, file.ranks, file.rows) for file in written.files] == [
        ("steps-0000.parquet", (0, 0), 40), ("steps-0001.parquet", (1, 1), 40),
    ]  # fmt: skip
    table = pa.concat_tables(pyarrow.parquet.read_table(tmp_path / file.name) for file in written.files)
    assert sorted(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True)) == [
        (rank, step) for rank in range(2) for step in range(40)
    ]


def test_what_is_not_there_is_named(client, tmp_path):
    with pytest.raises(NoSuchTable, match=r"no table 'stepz' has rows of jobs; there are: .*steps"):
        export(client, stored_job.JOB, "", ["stepz"], "parquet", tmp_path)
    with pytest.raises(NoSuchRun, match="has no run 'r9'"):
        export(client, stored_job.JOB, "r9", (), "parquet", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_files_and_rows_and_ends_with_2_where_it_cannot_write(
    client, clean_stack, environment_of, tmp_path
):
    def run(*options):
        command = ("export", "--job", stored_job.JOB, *options)
        return drumline_program.run(*command, environment=environment_of(clean_stack))

    done = run("-o", str(tmp_path / "out"), "--table", "steps")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'out' / 'steps.parquet'}: 80 rows, ")
    listed = json.loads(run("-o", str(tmp_path / "out"), "--json", "--table", "kernels").stdout)
    assert [(file["name"], file["rows"]) for file in listed["files"]] == [("kernels.parquet", 40)]
    (tmp_path / "file").write_text("")
    failed = run("-o", str(tmp_path / "file"))
    assert (failed.returncode, "drumline export: " in failed.stderr) == (2, True)
