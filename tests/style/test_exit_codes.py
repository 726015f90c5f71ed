"""docs/reference/exit-codes.md has a row for each command."""

import re

from glossary import ROOT

from drumline.infra.cli.app import COMMANDS


def test_every_command_is_listed():
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    table = {name for line in page.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)`", line)}
    table |= set(re.findall(r"`drumline (\w+)`", page))
    assert set(COMMANDS) <= table
