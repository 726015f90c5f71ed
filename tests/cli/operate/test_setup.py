"""One command prepares Kafka and ClickHouse, twice without harm, and ends at the first that fails."""

import subprocess
import sys

import pytest
from support.wait_limit import WAIT_S

pytestmark = pytest.mark.stack


def drumline(environment, *arguments):
    command = [sys.executable, "-m", "drumline.cli.app", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)


def test_topics_and_tables_are_there_afterwards_and_a_repetition_changes_nothing(clean_stack, environment_of):
    environment = environment_of(clean_stack)
    planned = drumline(environment, "setup", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "to do: 0001_raw_tables" in planned.stdout
    assert drumline(environment, "sql", "SELECT count() FROM jobs").returncode != 0, "a dry run makes nothing"
    done = drumline(environment, "setup")
    assert done.returncode == 0, done.stderr
    headings = ["Kafka: topics", "ClickHouse: tables", "ClickHouse: the local engine has its roles built in"]
    assert [line for line in done.stdout.splitlines() if line.startswith(("Kafka:", "ClickHouse:"))] == headings
    assert drumline(environment, "topics", "apply", "--check").returncode == 0
    again = drumline(environment, "setup")
    assert again.returncode == 0
    assert f"{clean_stack.clickhouse.database} is up to date" in again.stdout
    assert "created" not in again.stdout


def test_it_ends_at_the_first_that_fails_with_its_message(stack, environment_of):
    environment = environment_of(stack) | {"DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9"}
    done = drumline(environment, "setup")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "ClickHouse" not in done.stdout
