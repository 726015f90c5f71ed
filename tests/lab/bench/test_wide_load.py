"""The load of a job of many ranks, without an engine."""

import re

import pytest

from drumline.lab.bench import wide_load
from drumline.lab.bench.direct_load import Repetition

COPIES = Repetition("other", "bench", 2, 1_000, 10)


@pytest.fixture
def inserted(monkeypatch):
    """(table, first copy, copy behind the last) of each insert."""
    calls = []

    def insert(_client, sql, _parameters, settings):
        table = re.match(r"INSERT INTO gpu\.(\w+)", sql)[1]
        if table in broken:
            raise RuntimeError(f"{table} is broken")
        calls.append((table, *map(int, re.search(r"range\((\d+), (\d+)\)", sql).groups())))

    broken = set()
    monkeypatch.setattr(wide_load, "command", insert)
    monkeypatch.setattr(wide_load, "rows", lambda *_: [{"name": "job", "type": "String"}])
    return calls, broken


def test_each_repetition_stores_each_copy_of_the_recorded_ranks_once(inserted):
    calls, _ = inserted
    shown = []
    wide_load.widen(None, "gpu", COPIES, 4, 2_048, shown.append)
    copies = [n for table, first, last in calls if table == "steps" for n in range(first, last)]
    assert sorted(copies) == sorted([*range(512)] * COPIES.times)
    lived = [n for table, first, last in calls if table == "processes_versions" for n in range(first, last)]
    assert sorted(lived) == [*range(512)], "processes live through all repetitions"
    assert len(shown) == len(calls)
    assert shown[-1].startswith(f"load: insert {len(calls)} of {len(calls)}, ")


def test_a_failed_insert_ends_the_load(inserted):
    _, broken = inserted
    broken.add("steps")
    with pytest.raises(RuntimeError, match="steps is broken"):
        wide_load.widen(None, "gpu", COPIES, 4, 2_048, lambda _: None)
