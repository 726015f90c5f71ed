"""Rows that the engine cannot write to its disk never count as stored."""

import resource

import psutil
import pytest

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State
from drumline.infra.localstack.clickhouse.engine import ensure_engine, query
from drumline.infra.localstack.processes import own_processes

#: No file grows beyond that: the system refuses the write then, as that to a full disk; bytes.
LIMIT = 100_000
ROWS = 200_000


@pytest.mark.stack
@pytest.mark.parametrize("written_by", ["insert", "merge"])
def test_rows_whose_write_failed_are_not_answered_as_stored(private: Settings, written_by: str) -> None:
    table = f"{private.clickhouse.database}.t"
    insert = f"INSERT INTO {table} SELECT cityHash64(number) FROM numbers({ROWS})"
    with ensure_engine(private):
        query(private, f"CREATE TABLE {table} (n UInt64) ENGINE = MergeTree ORDER BY n", "writer")
        query(private, f"SYSTEM STOP MERGES {table}", "writer")
        parts = 30
        for part in range(parts):
            query(private, f"INSERT INTO {table} SELECT cityHash64(number, {part}) FROM numbers(1000)", "writer")
        [engine] = own_processes(private)["engine"]
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        with pytest.raises(StackError):  # noqa: PT012  # the merge may begin with either
            if written_by == "merge":
                query(private, f"SYSTEM START MERGES {table}", "writer")
            query(private, insert if written_by == "insert" else f"OPTIMIZE TABLE {table} FINAL", "writer")
        psutil.wait_procs([engine], timeout=30)
        assert not engine.is_running()
    assert f"{State.of(private).clickhouse}" in (log := (State.of(private).logs / "engine.log").read_text())
    assert "was not written: File too large" in log
    with ensure_engine(private):
        assert query(private, f"SELECT count() FROM {table}", "writer").strip() == str(parts * 1000)
