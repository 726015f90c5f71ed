"""Kafka refuses a worker that runs: an ACL was taken away, a password replaced. One line, no pages of tracebacks."""

from __future__ import annotations

import asyncio
import logging

from drumline.infra.kafka_contact import who
from drumline.infra.settings import Settings


def refused(settings: Settings, error: BaseException | None) -> str:
    """What was refused, in words; "" if `error` is anything else. The checks of the next start name the ACL."""
    from aiokafka import errors

    kafka = f"Kafka at {settings.bootstrap}"
    if isinstance(error, errors.TopicAuthorizationFailedError):
        return f"{kafka} denies {who(settings)} topic {_names(error)}: an ACL is missing; docs/security.md"
    if isinstance(error, errors.GroupAuthorizationFailedError):
        return f"{kafka} denies {who(settings)} group {_names(error)}: an ACL is missing; docs/security.md"
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        return f"{kafka} denies {who(settings)} an operation on the cluster; docs/security.md"
    if isinstance(error, errors.SaslAuthenticationFailed | errors.AuthenticationFailedError):
        return f"{kafka} refuses {who(settings)}; check DRUMLINE_KAFKA__SASL_USERNAME and ...SASL_PASSWORD_FILE"
    return ""


def _names(error: BaseException) -> str:
    return ", ".join(str(name) for name in error.args) or "?"


class OneLine(logging.Filter):
    """Of a refusal only the message; nothing of the agents that Faust cancels afterwards."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        if refused(self._settings, error):
            record.exc_info, record.exc_text = None, None
        return True
