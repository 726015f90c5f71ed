"""docs/tables.md is what the schema says, and the schema says what the contracts say."""

import pytest
import tables_page

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.migrate import migrate
from drumline.schemas.model import model
from drumline.sinks.tables.tables import TABLES, Source

pytestmark = pytest.mark.stack


def test_the_page_and_the_comments_are_up_to_date(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrate(client, clean_stack)
    assert tables_page.PAGE.read_text() == tables_page.page(client, database), "run `make docs`"
    found = rows(client, f"SELECT table, name, comment FROM system.columns WHERE database = '{database}'")
    comments = {(row["table"], row["name"]): row["comment"] for row in found}
    for stored in TABLES:
        docs = {field["name"]: field["doc"] for field in model(stored.topic).parsed["fields"]}
        for column in stored.columns:
            if column.source is not Source.META:
                first = docs[column.field].split(";")[0].split(",")[0]
                assert comments[stored.target, column.name].startswith(first), (stored.target, column.name)


def test_a_column_without_a_comment_and_a_table_without_a_place_are_found(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrate(client, clean_stack)
    client.command(f"ALTER TABLE {database}.kernels COMMENT COLUMN stream ''")
    with pytest.raises(ValueError, match=r"kernels\.stream"):
        tables_page.page(client, database)
    client.command(f"CREATE TABLE {database}.more (x UInt8) ENGINE = Memory")
    with pytest.raises(KeyError, match="more"):
        tables_page.page(client, database)
