"""`--help` as people read it, on a terminal of 80 columns."""

from itertools import pairwise

import pytest
from click.testing import CliRunner

from drumline.cli.app import MODULES, LazyCommands


@pytest.mark.parametrize("command", ["sql", "evaluate", "top", "explain"])
def test_sentences_fill_the_lines(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command in MODULES
    done = CliRunner().invoke(LazyCommands("drumline"), [command, "-h"])
    assert done.exit_code == 0, done.output
    prose = done.output.split("╭")[0].split("Examples:")[0]
    for paragraph in prose.replace("\r", "").split("\n" + " " * 80 + "\n"):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        for line, after in pairwise(lines):
            assert len(f"{line} {after.split()[0]}") > 78, f"broken before its end: {line!r}"
