"""Logging: structlog to stderr, readable on a terminal, one JSON object a line with DRUMLINE_LOG_JSON=true.

The libraries' own log lines take the same way, but equal ones only once in a while: without a broker aiokafka writes a
hundred a second. Secrets in the settings, and those given to `hide`, never get through, whatever text they are part of.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator

import structlog
from pydantic import BaseModel, SecretStr
from structlog.types import EventDict, Processor, WrappedLogger

from drumline.infra.config.settings import Settings

HIDDEN = "**********"
#: A library's line is followed by others of the same kind after so long at the earliest; s.
SELDOM_S = 60.0
_SECRETS: set[str] = set()


def hide(secret: str) -> None:
    """Let it never appear in a log line of this process."""
    if secret:
        _SECRETS.add(secret)


def masked(text: str) -> str:
    """`text` without the secrets that are known."""
    for secret in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


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
    """Before rendering: a rendered secret may have been escaped."""
    return {key: value if key.startswith("_") else _mask(value) for key, value in event.items()}


def secrets_of(settings: BaseModel) -> Iterator[str]:
    """The values of all SecretStr fields, at any depth."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from secrets_of(value)


class RateLimitFilter(logging.Filter):
    """Lets a library say the same thing (same logger, same text before values are filled in) once in SELDOM_S, with how
    often it was held back. What comes with a traceback always gets through. `clock`: s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        key, now = (record.name, str(record.msg)), self._clock()
        last, held = self._said.get(key, (float("-inf"), 0))
        if now - last < SELDOM_S:
            self._said[key] = last, held + 1
            return False
        if len(self._said) > 1_000:  # texts with their values already in them
            self._said.clear()
        self._said[key] = now, 0
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} more like it before)", ()
        return True


def configure(settings: Settings, program: str) -> None:
    """Set up structlog and the standard library's root logger for this process."""
    for secret in secrets_of(settings):
        hide(secret)
    level = logging.getLevelNamesMapping()[settings.log_level]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*before, mask_event, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # The real one: a stderr that somebody put in its place (a test, say) may be closed before this process ends.
        logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(program=program)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, mask_event, renderer],
        )
    )
    handler.addFilter(RateLimitFilter())
    # Not below: aiokafka's debug lines are its requests, with passwords and payloads in them.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler])
