"""The tools of `drumline mcp` without a server: errors name the remedy, and what must not be sent is not."""

import pytest

from drumline.infra.clickhouse.client import PermanentError, TransientError
from drumline.infra.clickhouse.queries import queries
from drumline.views.mcp.tools import ToolFailed, Tools


class Database:
    """Answers each call with the next of `answers`, or raises it."""

    def __init__(self, *answers):
        self.answers, self.calls, self.closed = list(answers), [], False

    def raw(self, text, form, parameters=None, **limits):
        self.calls.append((text, dict(parameters or {}), limits))
        if isinstance(answer := self.answers.pop(0), Exception):
            raise answer
        return answer

    def close(self):
        self.closed = True


def tools(*answers):
    database = Database(*answers)
    return Tools(lambda: database), database


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("", "empty"),
        ("SELECT 1 FORMAT CSV", "leave FORMAT out"),
        ("SELECT 1 SETTINGS max_execution_time = 600", "leave SETTINGS out: a query has 30 s"),
        ("SELECT 1 settings/**/max_memory_usage = 0", "leave SETTINGS out"),
        ("SET max_threads = 1", "a setting holds for one query"),
        ("GRANT ALL ON *.* TO analyst", "only reads"),
    ],
)
def test_a_statement_that_cannot_be_run_is_not_sent(statement, message):
    subject, database = tools()
    with pytest.raises(ToolFailed, match=message):
        subject.sql(statement, {})
    assert database.calls == []


def test_settings_as_a_table_may_be_read():
    subject, database = tools(b"")
    assert subject.sql("SELECT name FROM system.settings;", {}, 7)["rows"] == []
    [(text, _, limits)] = database.calls
    assert text == "SELECT name FROM system.settings"
    assert (limits["max_result_rows"], limits["max_execution_time"]) == (8, 30)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermanentError("Not enough privileges", 497), "refused by the database: this connection only reads"),
        (PermanentError("Cannot modify", 164), "refused by the database: this connection only reads"),
        (TransientError("Timeout exceeded", 159), "read less"),
        (PermanentError("no \x1b[31mtable", 60), r"no \\x1b\[31mtable"),
    ],
)
def test_an_error_of_the_database_names_the_remedy(error, message):
    subject, database = tools(error)
    with pytest.raises(ToolFailed, match=message):
        subject.jobs()
    assert not database.closed


def test_after_a_server_was_away_the_next_call_connects_again():
    opened = []

    def connection():
        opened.append(Database(TransientError("ClickHouse does not answer"), b""))
        return opened[-1]

    subject = Tools(connection)
    with pytest.raises(ToolFailed, match="does not answer"):
        subject.jobs()
    assert opened[0].closed
    opened_before = len(opened)
    with pytest.raises(ToolFailed):
        subject.jobs()
    assert len(opened) == opened_before + 1
    subject.close()


def test_questions_have_their_parameters_and_an_unknown_name_has_similar_ones():
    subject, _ = tools()
    listed = {entry["name"]: entry for entry in subject.questions()["questions"]}
    assert listed.keys() == queries().keys()
    assert {"name": "job", "type": "String", "default": None, "about": "the job"} in listed["stragglers"]["parameters"]
    assert subject.questions("Cost")["questions"]
    with pytest.raises(ToolFailed, match="there are: Jobs and ranks"):
        subject.questions("none")
    with pytest.raises(ToolFailed, match=r"did you mean straggler-cost .*list_questions names all"):
        Tools(lambda: _connection()).named_question("stragler-cost", {})
    assert [entry["detail"] for entry in subject.causes("pageable")["causes"]] == ["pageable"]
    with pytest.raises(ToolFailed, match="there are: host_stall"):
        subject.causes("bad luck")


def _connection():
    raise AssertionError("not needed")
