"""Logging with structlog to stderr: readable on a terminal, one JSON object per line with DRUMLINE_LOG_JSON=true.

Log lines of libraries take the same path, with a rate limit on equal ones: without a broker aiokafka writes a hundred
per second. A line that cannot be written is counted and ends nothing. Secrets of the settings, and those given to
secrets.hide, are masked in any text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TextIO, cast

import structlog
from pydantic import BaseModel, SecretStr
from structlog.types import EventDict, Processor, WrappedLogger

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.log_stream import LogStream, gap_line
from drumline.infra.runtime.terminal import LAYOUT, escape_controls
from drumline.infra.telemetry.secrets import hide, masked

#: Minimum interval of equal lines of a library; s.
RATE_LIMIT_S = 60.0


def _mask(value: object) -> object:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, dict):
        return {key: _mask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item) for item in value]
    return masked(str(value))


def mask_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask secrets in an event; runs before rendering, as rendering may escape a secret."""
    return {key: value if key.startswith("_") else _mask(value) for key, value in event.items()}


def escape_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters of an event for a terminal; a text of several lines (a traceback) stays one."""
    return {key: escape_controls(value, LAYOUT) if isinstance(value, str) else value for key, value in event.items()}


def secrets_of(settings: BaseModel) -> Iterator[str]:
    """Yield the values of all SecretStr fields, at any depth."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from secrets_of(value)


class RateLimit:
    """Passes one of a kind within RATE_LIMIT_S, and counts those between. Used by one thread; `clock` is in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def held(self, kind: tuple[str, str]) -> int | None:
        """Return how many of the kind were held back since the last that passed; None: hold this one back too."""
        now = self._clock()
        last, held = self._passed.get(kind, (float("-inf"), 0))
        if now - last < RATE_LIMIT_S:
            self._passed[kind] = last, held + 1
            return None
        if len(self._passed) > 1_000:  # kinds that contain values
            self._passed.clear()
        self._passed[kind] = now, 0
        return held


class RateLimitFilter(logging.Filter):
    """Drops equal log lines of a library within RATE_LIMIT_S, and counts them in the next one that passes.

    Equal means the same logger and the same text before values are filled in. Lines with a traceback always pass.
    `clock` is in s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = RateLimit(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop a repetition within RATE_LIMIT_S; add the number of dropped ones to the next record that passes."""
        if record.exc_info:
            return True
        held = self._limit.held((record.name, str(record.msg)))
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} more like it before)", ()
        return held is not None


def _gap_event(program: str, lines: int, reason: str) -> str:
    """Return the JSON line that stands for lost ones."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    event = {"event": "log lines are lost", "lines": lines, "reason": reason}
    return json.dumps({**event, "program": program, "level": "warning", "timestamp": now})


def configure(settings: Settings, program: str) -> None:
    """Configure structlog and the standard library's root logger for this process."""
    for secret in secrets_of(settings):
        hide(secret)
    level = logging.getLevelNamesMapping()[settings.log_level]
    render: list[Processor] = (
        [mask_event, structlog.processors.JSONRenderer()]
        if settings.log_json
        else [mask_event, escape_event, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    lines = cast(TextIO, LogStream(gap=partial(_gap_event, program) if settings.log_json else gap_line))
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*before, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # The original stderr: a replacement (in a test) may be closed before this process ends.
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(program=program)
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    handler.addFilter(RateLimitFilter())
    # Not below: aiokafka's debug lines are its requests, with passwords and payloads in them.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler])
