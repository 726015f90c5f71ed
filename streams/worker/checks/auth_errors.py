"""Kafka or the registry refuses a worker that runs: an ACL was taken away, a password replaced; or its state is that of
other settings. One line, no pages of tracebacks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import BrokerUnreachable, ConnectionProbe, KafkaAccessDenied, principal
from drumline.schemas.errors import RegistryRejected
from drumline.streams.worker.stage_runner import UnreadableState

#: Silence from Kafka after which it is asked whether it refuses us, and how often; s. Ticks come every second.
DOUBT_S = 10.0
ASK_S = 10.0


def refused(settings: Settings, error: BaseException | None) -> str:
    """What was refused, in words; "" if `error` is anything else. The checks of the next start name the ACL."""
    from aiokafka import errors

    if isinstance(error, RegistryRejected | UnreadableState):
        return str(error)
    kafka = f"Kafka at {settings.bootstrap}"
    if isinstance(error, errors.TopicAuthorizationFailedError):
        return f"{kafka} denies {principal(settings)} topic {_names(error)}: an ACL is missing; docs/guide/security.md"
    if isinstance(error, errors.GroupAuthorizationFailedError):
        return f"{kafka} denies {principal(settings)} group {_names(error)}: an ACL is missing; docs/guide/security.md"
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        return f"{kafka} denies {principal(settings)} an operation on the cluster; docs/guide/security.md"
    if isinstance(error, errors.SaslAuthenticationFailed | errors.AuthenticationFailedError):
        return f"{kafka} refuses {principal(settings)}; check DRUMLINE_KAFKA__SASL_USERNAME and ...SASL_PASSWORD_FILE"
    return ""


def _names(error: BaseException) -> str:
    return ", ".join(str(name) for name in error.args) or "?"


class OneLine(logging.Filter):
    """Of a refusal only the message; nothing of what Faust cancels or stops afterwards."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings, self._told = settings, False

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        named = record.args if isinstance(record.args, tuple) else ()  # Faust says it so where we told it to end
        if any(refused(self._settings, each) for each in (error, *named) if isinstance(each, BaseException)):
            record.exc_info, record.exc_text = None, None
            self._told = True
        return not (self._told and isinstance(error, RuntimeError) and str(error) == "Event loop is closed")


def ask(settings: Settings) -> str:
    """Why Kafka refuses a new connection, or "" if it does not or does not answer. Takes up to 5 s."""
    contact = ConnectionProbe(settings, timeout_s=5.0)
    try:
        contact.metadata(AdminClient(contact.silence(client_config(settings, "drumline-stream"))))
    except KafkaAccessDenied as error:
        return str(error)
    except BrokerUnreachable:
        pass
    return ""


class Doubt:
    """aiokafka takes a wrong password or certificate for a broker that is down, and tries for ever, 5 times a second.
    `refusal`: why that is of no use, once it is known. Times are of a monotonic clock; s."""

    def __init__(self, settings: Settings, ask: Callable[[Settings], str] = ask) -> None:
        self.refusal = ""
        self._settings, self._ask = settings, ask
        self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def observe(self, silence: float, now: float) -> None:
        """Called by the main loop. `silence`: since Kafka was last heard."""
        if silence > DOUBT_S and now - self._asked > ASK_S:
            self._asked = now
            self._asking = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        self.refusal = await asyncio.to_thread(self._ask, self._settings)
