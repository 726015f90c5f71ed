"""Times as people write them, for all commands: a moment, or how long ago. UTC where no zone is given."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

#: How a time is written, for help texts and errors.
TIME_FORMS = "1h, 90m or 2d ago, now, or YYYY-MM-DDThh:mm (UTC unless an offset is given)"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)", re.IGNORECASE)


class BadTime(ValueError):
    """The text is no time; the message names the forms."""


def parse_time(text: str, now: datetime) -> datetime:
    """Return the time in UTC. `now` has a zone. Raises BadTime.

    `1h`, `-1h`, `1h30m` and `1h ago` are before now. A date and time is ISO 8601, with `T` or a space.
    """
    plain = text.strip()
    ago = re.fullmatch(rf"-?((?:{_PART.pattern}\s*)+)(?:ago)?", plain, re.IGNORECASE)
    try:
        if plain.lower() == "now":
            return now.astimezone(UTC)
        if ago:
            parts = {_UNITS[unit.lower()]: float(number) for number, unit in _PART.findall(ago[1])}
            return now.astimezone(UTC) - timedelta(**parts)
        moment = datetime.fromisoformat(plain)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadTime(f"{text!r} is no time; write {TIME_FORMS}") from None


def clickhouse_time(moment: datetime) -> str:
    """Return the time as ClickHouse's DateTime64 in UTC reads it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
