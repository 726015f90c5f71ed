"""CONTRIBUTING.md names files and tests that exist."""

import re

from glossary import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_path_exists():
    paths = re.findall(r"`((?:docs|cli|lab|views|infra|producers|schemas|sinks|streams|tests)/[^` ]*)`", TEXT)
    assert len(paths) > 30
    assert not [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]


def test_every_invariant_has_a_test():
    section = TEXT.split("## Files that carry an invariant")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) >= 12
    for files, _, test in rows:
        assert re.fullmatch(r" `tests/[\w/]+/test_\w+\.py` ", test), files
