"""Questions to the ledger: none is longer than ClickHouse takes, however many processes a partition has."""

import pytest

from drumline.sinks.inserts import ledger
from drumline.sinks.ranges.offset_ranges import OffsetRange

#: Of a parameter (http_max_field_value_size).
CLICKHOUSE_BYTES = 128 << 10


@pytest.fixture
def queries(monkeypatch):
    """The process ids in each query."""
    texts = []
    monkeypatch.setattr(ledger, "rows", lambda client, sql, parameters: texts.append(parameters["processes"]) or [])
    return texts


@pytest.mark.parametrize("text", ["00000000-0000-0000-0000-{:012d}", "\U0001f4a5" * 1_000 + "{}", "\\" * 1_000 + "{}"])
@pytest.mark.parametrize("question", ["history", "contents"])
def test_a_question_about_many_processes_is_several(queries, question, text):
    """Sent as one it failed for ever (HTML Form Exception), and the sink stood still for all topics."""
    processes = [text.format(number) for number in range(5_000)]
    places = {(process, "key") if question == "history" else (process, "key", 7) for process in processes}
    before = OffsetRange("id", 0, 0, 9)
    answer = getattr(ledger.Ledger(None, "gpu"), question)("gpu.kernel.v1", places, before)
    assert answer.keys() == places
    assert sorted(name for names in queries for name in names) == sorted(processes)
    assert max(sum(len(repr(name).encode()) + 2 for name in names) for names in queries) < CLICKHOUSE_BYTES
