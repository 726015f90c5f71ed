"""Recognise permanent errors of a running worker and log each as one line.

Kafka or the registry denies access (an ACL was removed, a password replaced), or the state belongs to other settings.
"""

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

#: Silence from Kafka after which access is probed, and how often; s. Ticks come every second.
SILENCE_S = 10.0
PROBE_INTERVAL_S = 10.0


def permanent_error(settings: Settings, error: BaseException | None) -> str:
    """Return the message of a permanent error, or "" for any other error.

    The checks of the next start name the missing ACL.
    """
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
        return f"{kafka} rejects {principal(settings)}; check DRUMLINE_KAFKA__SASL_USERNAME and ...SASL_PASSWORD_FILE"
    return ""


def _names(error: BaseException) -> str:
    return ", ".join(str(name) for name in error.args) or "?"


class OneLineErrors(logging.Filter):
    """Filters log records around a permanent error.

    Keeps only the error's message, and drops the errors of Faust's shutdown after it.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings, self._logged = settings, False

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the traceback of a permanent error, and the errors that only follow from it."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        named = record.args if isinstance(record.args, tuple) else ()  # Faust logs it so where the worker ended it
        if any(permanent_error(self._settings, item) for item in (error, *named) if isinstance(item, BaseException)):
            record.exc_info, record.exc_text = None, None
            self._logged = True
        return not (self._logged and isinstance(error, RuntimeError) and str(error) == "Event loop is closed")


def probe_access(settings: Settings) -> str:
    """Return the reason why Kafka denies a new connection, or "" if it does not, or does not answer.

    Blocks for up to 5 s.
    """
    contact = ConnectionProbe(settings, timeout_s=5.0)
    try:
        contact.metadata(AdminClient(contact.silence(client_config(settings, "drumline-stream"))))
    except KafkaAccessDenied as error:
        return str(error)
    except BrokerUnreachable:
        pass
    return ""


class AccessProbe:
    """Finds out whether silence from Kafka means denied access.

    aiokafka takes a wrong password or certificate for a broker that is down, and retries for ever, 5 times a second.
    Owned by the main loop; probes in a thread. `reason`: why retries cannot succeed, "" until known. Times are of a
    monotonic clock, in s.
    """

    def __init__(self, settings: Settings, probe_access: Callable[[Settings], str] = probe_access) -> None:
        self.reason = ""
        self._settings, self._probe_access = settings, probe_access
        self._probed_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def observe(self, silence: float, now: float) -> None:
        """Probe if `silence`, the time since the last record from Kafka, is long; called by the main loop."""
        if silence > SILENCE_S and now - self._probed_at > PROBE_INTERVAL_S:
            self._probed_at = now
            self._task = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        self.reason = await asyncio.to_thread(self._probe_access, self._settings)
