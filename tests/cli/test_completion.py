"""Completion in a shell: commands, options, questions and their parameters, topics."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from drumline.cli import app as cli
from drumline.cli.operate.completion import Shell, app


def completed(line):
    *args, incomplete = line.split(" ")
    command = cli.root.get_command(None, args[0])
    context = command.make_context(args[0], args[1:], resilient_parsing=True)
    return [item.value for item in command.shell_complete(context, incomplete)]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("topics ", ["apply", "list", "tail", "verify"]),
        ("topics tail gpu.str", ["gpu.straggler.v1", "gpu.straggler.v1.dlq"]),
        ("topics tail gpu.straggler.v1 --from ", ["beginning", "end"]),
        ("topics apply --p", ["--partitions"]),
        ("sql straggler", ["straggler-cost", "stragglers"]),
        ("sql stragglers --r", ["--run"]),
        ("sql stragglers --a", ["--all-runs"]),
        ("sql --l", ["--list"]),
        ("sink --topic gpu.ker", ["gpu.kernel.v1", "gpu.kernel-frequency.v1"]),
        ("report --fr", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("down x", []),
    ],
)
def test_what_may_follow_is_completed(line, names):
    assert sorted(completed(line)) == sorted(names)


@pytest.mark.parametrize("shell", list(Shell))
def test_the_script_is_one_of_the_shell(shell, tmp_path):
    script = CliRunner().invoke(app, [shell.value])
    assert (script.exit_code, "_DRUMLINE_COMPLETE" in script.stdout) == (0, True)
    if program := shutil.which(shell.value):
        path = tmp_path / "script"
        path.write_text(script.stdout)
        subprocess.run([program, "-n", str(path)], check=True, timeout=20)
