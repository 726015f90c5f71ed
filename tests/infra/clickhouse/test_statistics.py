"""Tests of the statistics of columns where a user may not ask whether the server keeps any."""

from __future__ import annotations

import pytest
import structlog

from drumline.infra.clickhouse import statistics
from drumline.infra.clickhouse.client import PermanentError
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.clickhouse.statistics import statistics_changes


def failing(monkeypatch, code: int) -> None:
    def rows(*_):
        raise PermanentError("not enough privileges", code)

    monkeypatch.setattr(statistics, "rows", rows)


def test_a_user_without_the_grant_migrates_all_else_with_a_warning(monkeypatch):
    failing(monkeypatch, ErrorCode.ACCESS_DENIED)
    with structlog.testing.capture_logs() as logs:
        assert statistics_changes(None, "gpu", ["steps"]) == []
    [entry] = logs
    assert entry["log_level"] == "warning"
    assert "drumline roles apply" in entry["event"]


def test_another_error_is_no_missing_grant(monkeypatch):
    failing(monkeypatch, ErrorCode.SYNTAX_ERROR)
    with pytest.raises(PermanentError):
        statistics_changes(None, "gpu", ["steps"])
