"""Errors of ClickHouse as people read them: without what the client appends to their statement."""

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import connect
from drumline.infra.clickhouse.client import failure as failure_of
from drumline.views.sqlshell.hints import with_remedy


@pytest.mark.stack
def test_a_statement_that_ends_too_early_is_no_error_in_the_format_of_the_answer(clean_stack):
    migrated_database.create(clean_stack)
    client = connect(clean_stack, reader=True, database=clean_stack.clickhouse.database)

    def text_of(statement, form):
        try:
            client.raw_query(statement, fmt=form)
        except Exception as error:
            return with_remedy(failure_of(error))
        raise AssertionError(statement)

    for form in ("TSVWithNames", "CSVWithNames", "JSONEachRow", "Parquet"):
        for statement in ("SELECT", "SELECT 1,", "SELECT 1 FROM", "SELECT rank FROM steps WHERE",
                          "SELECT rank FROM steps ORDER BY", "SELECT rank FROM steps LIMIT"):  # fmt: skip
            assert text_of(statement, form).startswith("Syntax error: the statement ends where"), (form, statement)
        text = text_of("SELECT (1", form)
        assert "is never closed" in text
        assert "FORMAT" not in text
    client.close()
