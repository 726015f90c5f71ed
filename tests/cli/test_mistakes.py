"""Mistakes that people type: each is answered by one sentence that says what to type instead."""

import os

import psutil
import pytest
from click.testing import CliRunner

from drumline.cli.app import FIRST, MODULES, root
from drumline.cli.operate import stream
from drumline.cli.query.pull import LINE_S, PullProgress
from drumline.infra.clickhouse.queries import BadParameters, queries
from drumline.infra.config.settings import Settings
from drumline.infra.localstack import processes
from drumline.views.control.pulls import BadSteps, steps_of


def typed(*arguments):
    """Exit code and output, as one line."""
    done = CliRunner().invoke(root, arguments)
    return done.exit_code, " ".join(done.output.replace("\u2502", " ").split())


@pytest.mark.parametrize("command", ["report", "flamegraph", "capture"])
def test_a_missing_job_is_wanted_by_the_name_of_the_command(command):
    code, output = typed(command)
    assert code == 2
    assert "`drumline sql jobs` lists them" in output


@pytest.mark.parametrize("command", ["timeline", "pull"])
def test_a_job_is_named_by_place_and_what_is_missing_is_named_with_its_meaning(command):
    code, output = typed(command, "demo")
    assert code == 2
    assert "give" in output
    assert "--steps" in output
    assert "100-1" in output, "with an example"


@pytest.mark.parametrize("arguments", [("", "--yes"), ("", "--this-host", "--yes"), ("x" * 5_000, "--yes")])
def test_no_job_is_forgotten_without_a_name_as_rows_of_hosts_have_none(arguments, monkeypatch, tmp_path):
    monkeypatch.setenv("DRUMLINE_SPOOL__ROOT", str(tmp_path))
    code, output = typed("forget", *arguments)
    assert code == 2
    assert "no name of a job: " in output


@pytest.mark.parametrize("command", ["report", "timeline", "export", "flamegraph", "capture", "pull", "top", "audit"])
def test_every_command_about_one_job_takes_it_by_place_and_by_option(command):
    code, output = typed(command, "--help")
    assert code == 0
    assert "[OPTIONS] [JOB]" in output
    rest = {"timeline": ("--steps", "1"), "pull": ("--steps", "1"), "export": ("-o", "x")}.get(command, ())
    assert "two jobs are named: a and --job b" in typed(command, "a", "--job", "b", *rest)[1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("top", "--job"), "drumline top: option '--job' requires an argument; `drumline top -h` explains it"),
        (("policy", "set"), "drumline policy set: give POLICY: "),
        (("topics", "lists"), "drumline topics: no such command 'lists'. Did you mean 'list'?; `drumline topics -h` "),
        (("bench", "queries", "--repeats", "many"), "drumline bench queries: invalid value for '--repeats': "),
        (("demo", "--keeep"), "drumline demo: no such option: --keeep"),
    ],
)
def test_a_mistake_in_options_is_one_line_with_the_commands_help(arguments, line):
    done = CliRunner().invoke(root, arguments, prog_name="drumline")
    assert done.exit_code == 2
    assert done.output.startswith(line)
    assert done.output.endswith(" -h` explains it\n")
    assert done.output.count("\n") == 1


def test_a_group_without_a_command_prints_its_help():
    done = CliRunner().invoke(root, ["topics"])
    assert done.exit_code == 2
    assert "Create all topics" in done.output
    assert "explains it" not in done.output


def test_a_command_of_a_group_names_its_argument_too():
    assert "give POLICY" in typed("policy", "set")[1]


def test_help_shows_what_people_type_first_and_all_on_request():
    first, everything = typed("--help"), typed("--help", "--all")
    assert (first[0], everything[0]) == (0, 0)
    shown = {name for name in MODULES if f" {name} " in f" {first[1]} "}
    assert shown >= FIRST
    assert "backfill" not in first[1]
    assert f"{len(MODULES) - len(FIRST)} more: drumline --help --all" in first[1]
    assert all(f" {name} " in everything[1] for name in MODULES)
    assert MODULES.keys() > FIRST


@pytest.mark.parametrize("text", ["100-119", "100:119", " 100 - 119 "])
def test_steps_have_one_form_and_the_older_one_is_understood(text):
    assert steps_of(text) == (100, 119)
    with pytest.raises(BadSteps, match="for example: 100-119"):
        steps_of("100..119")


@pytest.mark.parametrize(
    ("name", "option", "text", "reason"),
    [("top-kernels", "limit", "ten", "no whole number"), ("top-kernels", "limit", "-3", "below 0")],
)
def test_a_word_in_place_of_a_number_is_answered_by_an_example(name, option, text, reason):
    with pytest.raises(BadParameters, match=rf"--{option} '{text}' is {reason}; for example: --{option} \d+"):
        queries()[name].values({"job": "demo", option: text})
    assert queries()[name].values({"job": "demo", option: "7"})[option] == "7"


def test_a_pull_that_waits_names_the_number_of_ranks():
    progress = PullProgress(4, 60.0, 100.0)
    assert progress.line(0, 0, 100.0) == (
        "waiting for 4 of 4 ranks; no agent has answered yet, only those that keep rows (policy rollup) do; 60 s left"
    )
    assert progress.line(0, 0, 101.0) == ""
    assert progress.line(1, 2, 100.0 + LINE_S) == "waiting for 3 of 4 ranks; 55 s left"
    assert progress.line(4, 4, 200.0) == ""


def test_a_second_worker_beside_the_stacks_own_is_stated(monkeypatch, tmp_path):
    settings = Settings()
    settings.local.state = tmp_path
    monkeypatch.delenv(processes.STACK, raising=False)
    assert stream.beside_up(settings) == ""
    command = [*processes.COMMAND, "stream"]
    monkeypatch.setattr(processes, "_processes", lambda: [(psutil.Process(os.getpid()), command)])
    monkeypatch.setattr(psutil.Process, "environ", lambda self: {processes.STACK: str(tmp_path)})
    assert f"`drumline up` runs a stream worker already (process {os.getpid()})" in stream.beside_up(settings)
    monkeypatch.setenv(processes.STACK, str(tmp_path))
    assert stream.beside_up(settings) == "", "the stack's own says nothing"
