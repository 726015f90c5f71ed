"""Mistakes that people typed, on a stack that is down and on one with a job: one line says what, why and what to do."""

import sys

import pytest
from support import migrated_database
from support.stored_job import JOB, store

from drumline.cli.app import main
from drumline.infra.config.settings import settings
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, free_ports

#: Typed -> what the line states: the remedy, and the name of what is wrong. Nothing has to run for them.
PLAIN = {
    ("explainn", "demo"): "no command 'explainn'; did you mean explain",
    ("start",): "no command 'start'; type: drumline up",
    ("offenders",): "it is a question: drumline sql offenders",
    ("demo", "--keeep"): "no such option: --keeep",
    ("up", "--detach"): "no such option: --detach; `drumline up -h` explains it",
    ("status", "all"): "got unexpected extra argument(s) (all)",
    ("limits", "names"): "no such command 'names'. Did you mean 'list'?",
    ("limits", "delete"): "no such command 'delete'. Did you mean 'clear'?",
    ("policy", "list"): "no such command 'list'. Did you mean 'show'?",
    ("topics", "create"): "no such command 'create'. Did you mean 'apply'?",
    ("hook", "uninstall"): "no such command 'uninstall'. Did you mean 'remove'?",
    ("backup", "now"): "no such command 'now'; there are: create, restore",
    ("limits", "set", "stragler_share=0.1"): "did you mean straggler_share?",
    ("limits", "set", "straggler_share=2"): "the most is 1; straggler_share=off turns the alert off",
    ("limits", "set", "straggler_share=10%"): "a share of 10 % is 0.1",
    ("limits", "set", "hung_s=600", "--label", "team"): "--label team: write NAME=VALUE",
    ("policy", "set", "sometimes"): "'sometimes' is no policy: light, auto, counts, always, rollup or off",
    ("policy", "set", "always", "--for", "long"): "'long' is no length of time; write 90s, 30m, 2h or 7d",
    ("sql", "top-kernls", "--job", "demo"): "did you mean top-kernels",
    ("sql", "top_kernels", "--job", "demo"): "no query is called top_kernels; did you mean top-kernels",
    ("sql", "top-kernels"): "top-kernels needs --job; it has: --job, [--run]",
    ("sql", "top-kernels", "demo"): "give it by the name of a parameter, such as --job demo",
    ("sql", "top-kernels", "--jobb", "demo"): "has no parameter --jobb; did you mean --job?",
    ("sql", "top-kernels", "--job", "demo", "--limit", "ten"): "is no whole number; for example: --limit 20",
    ("sql", "top-kernels", "--job", "demo", "--since", "monday"): "is no time; write 1h, 90m or 2d ago",
    ("sql", "SELEC 1"): "did you mean SELECT?",
    ("sql", "SELECT", "job", "FROM", "jobs"): 'into quotes: drumline sql "SELECT job FROM jobs"',
    ("sql", "SELECT 1", "-o", "rows.xlsx"): "the name has the format, one of .parquet, .arrow, .csv",
    ("sql", "SELECT 1", "--format", "xml"): "the query has no parameter --format; it has none",
    ("explain",): "give JOB: The job's name; `drumline sql jobs` lists them",
    ("report", "demo", "--since", "soon"): "--since 'soon' is no time; write 1h",
    ("report", "demo", "--since", "1h", "--until", "2h"): "--since 1h is not before --until 2h",
    ("timeline", "demo"): "--steps 100-110",
    ("timeline", "demo", "--steps", "5-1"): "is no span of numbers; for example: --steps 100-110",
    ("export", "demo"): "give -o OUTPUT: Folder to write to",
    ("capture", "demo", "--steps", "many"): "invalid value for '--steps'",
    ("run",): "give COMMAND: the command and its arguments, after --",
    ("run", "--policy", "al", "--", "true"): "'al' is no policy: light",
    ("run", "--label", "team", "--", "true"): "--label team: KEY=VALUE",
    ("verdict", "/nowhere.json"): "/nowhere.json",
    ("replay", "/nowhere"): "/nowhere",
    ("completion", "csh"): "'csh' is not one of",
    ("topics", "tail", "gpu.kernel"): "`drumline topics list` names them",
}  # fmt: skip
#: The same where a server has to answer, and none does.
DOWN = {
    ("topics", "apply"): "`drumline up` starts the local one; DRUMLINE_KAFKA__BOOTSTRAP names another",
    ("dlq", "list"): "no Kafka broker answers at",
    ("policy", "show"): "no Kafka broker answers at",
    ("sql", "jobs"): "`drumline up` starts the local one, DRUMLINE_CLICKHOUSE__URL names another",
    ("explain", "demo"): "DRUMLINE_CLICKHOUSE__URL names another",
    ("report", "demo"): "DRUMLINE_CLICKHOUSE__URL names another",
    ("top", "--once"): "DRUMLINE_CLICKHOUSE__URL names another",
}
#: Variable and value -> what the line states.
SETTINGS = {
    ("DRUMLINE_CLIKHOUSE__URL", "http://h"): "no such setting (DRUMLINE_CLICKHOUSE__URL?)",
    ("DRUMLINE_STREAM__WINDOW_STEPS", "many"): "DRUMLINE_STREAM__WINDOW_STEPS: ",
    ("DRUMLINE_LOG_LEVEL", "LOUD"): "DRUMLINE_LOG_LEVEL: ",
    ("DRUMLINE_CLICKHOUSE__URL", "localhost:8123"): "DRUMLINE_CLICKHOUSE__URL",
}
#: On a stack with a job.
UP = {
    ("sql", "SELECT duration FROM steps"): "did you mean duration_ns or gpu_duration_ns",
    ("sql", "SELECT medain(rank) FROM steps"): "Maybe you meant: ['median']",
    ("sql", "SELECT * FROM step"): '`drumline sql "SHOW TABLES"` lists the tables',
    ("sql", "SELECT sum(job) FROM steps"): "lists columns with their types",
    ("sql", "SELECT job, max(rank) FROM steps"): "behind GROUP BY",
    ("sql", "SELECT 1; SELECT 2"): "one statement at a time",
    ("sql", "INSERT INTO steps VALUES (1)"): "this user may not do that",
    ("sql", "top-kernels", "--job", "demoo"): f"no job 'demoo' is stored; there are: '{JOB}'",
    ("explain", "demoo"): f"there are: '{JOB}'",
    ("explain", JOB, "--run", "r9"): "has no run 'r9'; there are: r1",
    ("explain", JOB, "--rank", "9"): "has no rank 9; its ranks are 0 to 1",
    ("timeline", JOB, "--steps", "9000-9010"): "there are steps 0 to 39",
    ("report", JOB, "--since", "2001-01-01", "--until", "2001-01-02"): "run r1 went from",
    ("flamegraph", JOB): "`drumline capture --with kernels,launches,stacks` records them",
    ("top", "--job", "demoo", "--once"): f"there are: '{JOB}'",
    ("forget", "demoo", "--yes"): "demoo",
    ("backup", "create", "/elsewhere"): "names no backup: NAME, below",
}


def _id(value):
    return " ".join(value)[:40] if isinstance(value, tuple) else ""


@pytest.fixture
def line(monkeypatch, capsys):
    """Type a command; return its one line. A list of usage errors, a traceback or a success fail."""

    def typed(variables, arguments):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["drumline", *arguments])
        settings.cache_clear()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code in (1, 2), printed
        lines = printed.err.strip().splitlines()
        assert len(lines) == 1, printed
        assert printed.out == ""
        assert lines[0].startswith(("drumline", "Error: no command"))
        return lines[0]

    yield typed
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def down(tmp_path):
    """The variables of a stack of which nothing runs."""
    of_engine = f"http://127.0.0.1:{free_ports(1)[0]}"
    return {
        **_drumline_variables(environment(ephemeral_settings(tmp_path / "state"))),
        "DRUMLINE_CLICKHOUSE__URL": of_engine,
    }


def _drumline_variables(variables):
    return {name: value for name, value in variables.items() if name.startswith("DRUMLINE_")}


@pytest.mark.parametrize(("arguments", "stated"), [*PLAIN.items(), *DOWN.items()], ids=_id)
def test_a_mistake_is_one_line_with_its_remedy_where_nothing_runs(arguments, stated, line, down):
    assert stated in line(down, arguments)


@pytest.mark.parametrize(("variable", "stated"), SETTINGS.items(), ids=_id)
def test_a_setting_that_is_none_is_named(variable, stated, line, down):
    assert stated in line({**down, variable[0]: variable[1]}, ("sql", "jobs"))


@pytest.mark.stack
def test_a_mistake_about_what_is_stored_is_one_line_with_its_remedy(clean_stack, line):
    migrated_database.create(clean_stack)
    store(clean_stack)
    variables = _drumline_variables(environment(clean_stack))
    for arguments, stated in UP.items():
        assert stated in line(variables, arguments), arguments


@pytest.mark.stack
def test_a_restore_without_a_broker_is_one_line_at_once(clean_stack, line):
    variables = _drumline_variables(environment(clean_stack)) | {
        "DRUMLINE_KAFKA__BOOTSTRAP": f"127.0.0.1:{free_ports(1)[0]}"
    }
    assert "no Kafka broker answers at" in line(variables, ("backup", "restore", "b1"))


@pytest.mark.stack
@pytest.mark.parametrize("arguments", [("sql", "jobs"), ("explain", "demo"), ("report", "demo"), ("top", "--once")])
def test_tables_that_are_not_made_yet_are_one_line_with_the_command(arguments, clean_stack, line):
    assert "run `drumline migrate`" in line(_drumline_variables(environment(clean_stack)), arguments)


def test_at_least_35_mistakes_are_tried():
    assert len(PLAIN) + len(DOWN) + len(SETTINGS) + len(UP) >= 35
