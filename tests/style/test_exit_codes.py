"""docs/reference/exit-codes.md has a row for each command and for each code."""

import re
from collections import Counter

from glossary import ROOT

from drumline.cli.app import MODULES
from drumline.infra.runtime import exit_codes


def test_every_command_is_listed():
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    table = {name for line in page.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)`", line)}
    table |= set(re.findall(r"`drumline (\w+)`", page))
    assert set(MODULES) <= table


def test_every_code_has_one_name_and_one_row():
    codes = [value for name, value in vars(exit_codes).items() if name.isupper()]
    assert Counter(codes).most_common(1)[0][1] == 1
    page = (ROOT / "docs/reference/exit-codes.md").read_text().split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in page.splitlines() if re.match(r"\| \d", line)]
    assert sorted(codes) == [int(number) for row in rows for number in row.split(",")]


def test_no_command_exits_with_a_bare_number():
    bare = re.compile(r"typer\.Exit\(.*\b\d|sys\.exit\(\d|exit_with\([^,]+, \d")
    calls_by_file = {
        str(path.relative_to(ROOT)): bare.findall(path.read_text())
        for folder in ("cli", "lab", "views", "infra")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: calls for name, calls in calls_by_file.items() if calls} == {}
