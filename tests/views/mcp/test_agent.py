"""A scripted agent, the SDK's own client over stdio, finds the demo's faults by questions, and can write nothing."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest
from support.demo_engine import FAULTS, demo_engine
from support.wait_limit import WAIT_S

from drumline.infra.localstack.ephemeral import environment

pytestmark = [pytest.mark.long, pytest.mark.stack]
COMMAND = [sys.executable, "-m", "drumline.cli.app", "mcp"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with demo_engine(tmp_path_factory.mktemp("demo")) as settings:
        yield environment(settings)


def script(variables, play):
    """Play a script against the server: play(call), where call(tool, **arguments) returns (is_error, JSON or text)."""
    # A second, in each process that collects tests.
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def main():
        server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=variables)
        async with Client(stdio_client(server)) as client:

            async def call(tool, **arguments):
                result = await client.call_tool(tool, arguments)
                [block] = result.content
                if result.is_error:
                    return True, block.text
                assert json.loads(block.text) == result.structured_content
                return False, result.structured_content

            tools = (await client.list_tools()).tools
            assert all(tool.annotations.read_only_hint for tool in tools)
            await play(call)

    asyncio.run(main())


def records(answer):
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def test_it_finds_the_four_faults_by_questions(demo):
    async def play(call):
        _, answer = await call("jobs")
        [job] = records(answer)
        _, listed = await call("list_questions", theme="Stragglers")
        assert "straggler-cost" in {entry["name"] for entry in listed["questions"]}
        _, cost = await call("ask", question="straggler-cost", parameters={"job": job["job"]})
        worst = {}
        for row in records(cost):  # the most expensive first
            worst.setdefault(row["rank"], row["cause"])
        assert worst == FAULTS
        _, explained = await call("explain", job=job["job"])
        assert {verdict["rank"]: verdict["cause"] for verdict in explained["verdicts"]} == FAULTS
        assert all(verdict["act"] for verdict in explained["verdicts"])
        _, guidance = await call("causes", cause=worst[3])
        assert guidance["causes"][0]["check"]

    script(demo, play)


def test_a_write_is_denied_and_the_message_names_the_reason(demo):
    async def play(call):
        _, before = await call("query", sql="SELECT count() AS n FROM kernels")
        for statement in (
            "INSERT INTO kernels (job) VALUES ('x')",
            "DROP TABLE kernels",
            "ALTER TABLE kernels DELETE WHERE 1",
            "CREATE TABLE x (a UInt8) ENGINE = Memory",
        ):
            is_error, text = await call("query", sql=statement)
            assert is_error
            assert "refused by the database: this connection only reads" in text
        assert (await call("query", sql="SELECT count() AS n FROM kernels"))[1] == before
        is_error, text = await call("query", sql="SELECT * FROM file('/etc/passwd', 'LineAsString')")
        assert (is_error, "only reads" in text) == (True, True)

    script(demo, play)


def test_what_cannot_be_answered_names_the_remedy(demo):
    async def play(call):
        for tool, arguments, remedy in (
            ("ask", {"question": "straggler-costs"}, "did you mean straggler-cost"),
            ("ask", {"question": "straggler-cost"}, "needs job"),
            ("ask", {"question": "straggler-cost", "parameters": {"job": "x"}}, "there are: 'demo'"),
            ("explain", {"job": "x"}, "there are: 'demo'"),
            ("schema", {"table": "kernel"}, "schema without a table names all"),
            ("query", {"sql": "SELECT nam FROM kernels"}, "name"),
        ):
            is_error, text = await call(tool, **arguments)
            assert (is_error, remedy in text) == (True, True), text

    script(demo, play)


def test_the_schema_has_comments_and_rows_are_bounded(demo):
    async def play(call):
        _, tables = await call("schema")
        names = {entry["name"] for entry in tables["tables"]}
        assert names >= {"kernels", "stragglers"}
        assert not [name for name in names if name.endswith("_versions") or "_from_" in name]
        _, columns = await call("schema", table="stragglers")
        [cause] = [column for column in columns["columns"] if column["name"] == "cause"]
        assert "host_stall" in cause["comment"]
        _, answer = await call("query", sql="SELECT name FROM kernels", max_rows=3)
        assert (len(answer["rows"]), answer["cut"].startswith("only the first 3 rows")) == (3, True)
        _, escaped = await call("query", sql="SELECT '\x1b]0;do as I say\x07' AS x")
        assert escaped["rows"] == [["\\x1b]0;do as I say\\x07"]]

    script(demo, play)


def test_it_ends_with_its_input_and_by_ctrl_c(demo):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    for end, code in (("input", 0), ("ctrl-c", 130)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(COMMAND, env=demo, text=True, **pipes) as server:
            server.stdin.write(line)
            server.stdin.flush()
            assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "drumline"
            if end == "input":
                server.stdin.close()
            else:
                server.send_signal(signal.SIGINT)
            assert server.wait(WAIT_S) == code
            assert server.stdout.read() == ""
