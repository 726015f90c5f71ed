"""The command before any command runs; and in a tree that is not installed, where programs have no version."""

import signal
import subprocess
import sys
import textwrap
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import click
import pytest
import typer
from click.testing import CliRunner

from drumline.cli import app as cli
from drumline.cli.app import root
from drumline.infra.config.settings import Settings
from drumline.infra.runtime import version
from drumline.producers.agent.own_samples import OwnSamples
from drumline.schemas.codec import Codec
from drumline.sinks.kafka.dead_letters import headers


@pytest.fixture(autouse=True)
def uninstalled(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)


def test_the_agent_starts(tmp_path):
    program = SimpleNamespace(processes=[], recorded=[], gpus={}, ras={})
    samples = OwnSamples(Settings(spool={"root": tmp_path}), program, Codec())
    samples.stop()
    assert samples._spool._process["versions"]["drumline"] == "0+unknown"


def test_a_dead_letter_names_the_version():
    record = SimpleNamespace(value=b"", topic="t", partition=0, offset=1, timestamp_ms=2, headers=[], part=0)
    names_and_values = headers(SimpleNamespace(record=record, error=("c", "")), "id")
    assert ("drumline.version", b"0+unknown") in names_and_values


def test_the_command_prints_the_version():
    answer = CliRunner().invoke(root, ["--version"])
    assert (answer.exit_code, answer.output) == (0, "drumline 0+unknown\n")


def test_ctrl_c_before_a_command_runs_leaves_no_trace_and_after_that_it_is_the_commands():
    script = """
        import os, signal, sys
        from drumline.cli import app as cli
        from drumline.cli import main
        signal.signal(signal.SIGINT, signal.SIG_IGN if "ignored" in sys.argv else signal.default_int_handler)
        load = cli.importlib.import_module
        def interrupted(name):
            os.kill(os.getpid(), signal.SIGINT)
            return load(name)
        cli.importlib.import_module = interrupted
        sys.argv = ["drumline", "config"]
        main.main()
    """
    for ignored, code in ([], -signal.SIGINT), (["ignored"], 0):
        command = [sys.executable, "-c", textwrap.dedent(script), *ignored]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "")
        assert bool(done.stdout) == (code == 0)
    handlers = []
    command = cli.TyperCommand("x", typer.Typer())
    with pytest.MonkeyPatch.context() as patch:
        seen = SimpleNamespace(
            params=[],
            parse_args=None,
            help="",
            main=lambda **_: handlers.append(signal.getsignal(signal.SIGINT)),
            context_settings={},
        )
        patch.setattr(cli.typer.main, "get_command", lambda app: seen)
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        with pytest.raises(SystemExit):
            command.invoke(click.Context(command))
        signal.signal(signal.SIGINT, before)
    with pytest.raises(KeyboardInterrupt):
        handlers[0](signal.SIGINT, None)
