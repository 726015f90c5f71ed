"""The page of tables says what the schema says, and the schema says what the contracts say."""

import pytest
import tables_page
from check_docs import BUILT, check_page
from glossary import read_glossary
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.migrate import migrate
from drumline.schemas.envelope import ENVELOPE
from drumline.schemas.model import model
from drumline.sinks.tables.tables import TABLES, ColumnSource

pytestmark = pytest.mark.stack


def test_the_page_reads_as_others_and_comments_are_those_of_the_contracts(clean_stack, tmp_path):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrate(client, clean_stack)
    assert tables_page.PAGE in BUILT
    page = tmp_path / "reference" / "tables.md"
    page.parent.mkdir()
    page.write_text(tables_page.page(client, database))
    findings = check_page(read_glossary(), page)
    assert [str(finding) for finding in findings if finding.kind not in ("link", "cell")] == []  # cells list values
    described = rows(client, f"SELECT table, name, comment FROM system.columns WHERE database = '{database}'")
    comments = {(row["table"], row["name"]): row["comment"] for row in described}
    for stored in TABLES:
        docs = {field["name"]: field["doc"] for field in model(stored.topic).parsed["fields"]}
        for column in stored.columns:
            if column.source is not ColumnSource.META:
                first = docs[column.field].split(";")[0].split(",")[0]
                assert comments[stored.target, column.name].startswith(first), (stored.target, column.name)


def test_every_column_of_tables_and_views_has_a_comment(clean_stack):
    """DESCRIBE shows comments of views only where the view has them itself."""
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrated_database.create(clean_stack)
    tables = rows(client, f"SELECT name, engine FROM system.tables WHERE database = '{database}' ORDER BY name")
    described = {row["name"]: rows(client, f"DESCRIBE TABLE {database}.{row['name']}") for row in tables}
    assert not [(table, row["name"]) for table, columns in described.items() for row in columns if not row["comment"]]
    views = {row["name"] for row in tables if row["engine"] == "View"}
    assert views > {"stragglers", "lateness", "processes", "jobs"}
    of_no_table = {"jobs", "attempts", "coverage", "job_coverage", "hot_stacks", "offenders", "faults"}
    for view in views - of_no_table - {"serving_minutes", "serving_verdicts", "adapter_costs"}:
        stored = f"{view.removesuffix('_now')}_versions"
        table = [(row["name"], row["type"], row["comment"]) for row in described[stored]]
        assert [(row["name"], row["type"], row["comment"]) for row in described[view]] == table, view
    feeds = {row["name"] for row in tables if row["engine"] == "MaterializedView"}
    assert "records_per_minute_from_ledger" in feeds
    for feed in feeds:
        comments = {row["name"]: row["comment"] for row in described[feed.split("_from_")[0]]}
        assert all(comments[row["name"]] == row["comment"] for row in described[feed]), feed


def test_derived_tables_have_no_column_of_the_envelope(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrated_database.create(clean_stack)
    of_jobs = [stored for stored in TABLES if "rank" not in model(stored.topic).shared]
    assert [stored.name for stored in of_jobs] == ["lateness", "stragglers", "hangs"]
    for stored in of_jobs:
        first = [(column.name, column.source) for column in stored.columns[2:5]]
        assert first == [
            ("rank", ColumnSource.PACKED),
            ("host", ColumnSource.DICTIONARY),
            ("gpu_uuid", ColumnSource.DICTIONARY),
        ]
        names = {row["name"] for row in rows(client, f"DESCRIBE TABLE {database}.{stored.name}")}
        assert names & set(ENVELOPE) == {"job", "run", "rank", "host", "gpu_uuid"}, stored.name


def test_a_column_without_a_comment_and_a_table_without_a_place_are_found(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrated_database.create(clean_stack)
    client.command(f"ALTER TABLE {database}.kernels COMMENT COLUMN stream ''")
    with pytest.raises(ValueError, match=r"kernels\.stream"):
        tables_page.page(client, database)
    client.command(f"CREATE TABLE {database}.more (x UInt8) ENGINE = Memory")
    with pytest.raises(KeyError, match="more"):
        tables_page.page(client, database)
