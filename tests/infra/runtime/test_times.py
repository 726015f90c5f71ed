"""One parser of times for all commands."""

from datetime import UTC, datetime

import pytest

from drumline.infra.runtime.times import BadTime, clickhouse_time, parse_time

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", "2026-11-23 12:00:00.000000"),
        ("1h", "2026-11-23 11:00:00.000000"),
        ("-1h", "2026-11-23 11:00:00.000000"),
        ("90m ago", "2026-11-23 10:30:00.000000"),
        ("1h30m", "2026-11-23 10:30:00.000000"),
        ("2d", "2026-11-21 12:00:00.000000"),
        ("1.5 h", "2026-11-23 10:30:00.000000"),
        ("2026-11-22", "2026-11-22 00:00:00.000000"),
        ("2026-11-22T21:00", "2026-11-22 21:00:00.000000"),
        ("2026-11-22 21:00:07.25", "2026-11-22 21:00:07.250000"),
        ("2026-11-22T21:00+01:00", "2026-11-22 20:00:00.000000"),
        ("2026-11-22T21:00Z", "2026-11-22 21:00:00.000000"),
    ],
)
def test_a_time_is_written_as_a_moment_or_as_how_long_ago(text, time):
    assert clickhouse_time(parse_time(text, NOW)) == time


@pytest.mark.parametrize("text", ["noon", "", "1", "h", "1y", "99999999999d", "2026-13-01", "1hour"])
def test_other_text_is_rejected_with_the_forms(text):
    with pytest.raises(BadTime, match=r"is no time; write 1h, 90m or 2d ago, now, or YYYY-MM-DDThh:mm \(UTC unless"):
        parse_time(text, NOW)
