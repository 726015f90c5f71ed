"""Logging: structlog to stderr, readable on a terminal, JSON with DRUMLINE_LOG_JSON=true."""

from __future__ import annotations

import logging
import sys

import structlog

from drumline.infra.settings import Settings


def configure(settings: Settings, program: str) -> None:
    """Set up structlog and the standard library's root logger for this process."""
    level = logging.getLevelNamesMapping()[settings.log_level]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(program=program)
    logging.basicConfig(
        level=max(level, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
