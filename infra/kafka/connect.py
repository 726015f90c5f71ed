"""First connection of a Kafka client, and errors that name the setting to correct.

librdkafka retries connections for ever and reports the reason only to a callback. `ConnectionProbe` evaluates those
reports: a wrong password or certificate ends the attempt at once, since the broker would answer the same next time.
"""

from __future__ import annotations

import re
import time
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State, held
from drumline.infra.kafka.advertised import addresses, advertised_error
from drumline.infra.runtime import tls
from drumline.infra.runtime.listeners import connect_error

log = structlog.get_logger()

TIMEOUT_S = 10.0
HINT = "`drumline up` starts the local one; DRUMLINE_KAFKA__BOOTSTRAP names another"
#: The broker denies an operation: an ACL is missing.
DENIED = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip
#: The broker rejects the client's credentials.
UNKNOWN_USER = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})

#: No broker answers, or not the one that is needed.
UNANSWERED = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
})  # fmt: skip


class BrokerUnreachable(ConnectionError):
    """No usable broker answered within the timeout: retry later. The message has the address and a remedy."""


class KafkaAccessDenied(BrokerUnreachable):
    """A broker rejected certificate, password or operation: fatal, as it will answer the same next time."""


def principal(settings: Settings) -> str:
    """Return the principal that the broker sees, for messages."""
    if settings.kafka.security_protocol.startswith("SASL"):
        return f"user {settings.kafka.sasl_username}"
    return "the owner of this client's certificate" if settings.kafka.ssl_certificate else "an anonymous user"


def to_access_error(settings: Settings, error: KafkaError, right: str = "") -> KafkaAccessDenied | None:
    """Return the exception to raise where `error` rejects the client, else None. `right`: the missing one, if known."""
    if error.code() in UNKNOWN_USER:
        return KafkaAccessDenied(f"{_place(settings)} rejects {principal(settings)}: {_sentence(error)}{_login(error)}")
    if error.code() in DENIED:
        needs = right or _sentence(error)
        text = f"{_place(settings)} denies {principal(settings)}: {needs}. ACLs per program: docs/guide/security.md"
        return KafkaAccessDenied(text)
    return None


def to_error(settings: Settings, error: KafkaException, right: str = "") -> BrokerUnreachable:
    """Return KafkaAccessDenied where `error` rejects the client, else BrokerUnreachable, with a readable message."""
    if denied := to_access_error(settings, error.args[0], right):
        return denied
    if error.args[0].code() in UNANSWERED and (text := advertised_error(settings)):
        return BrokerUnreachable(text)
    return BrokerUnreachable(f"{_place(settings)} failed: {_sentence(error.args[0])} ({error.args[0].name()})")


def silence_librdkafka(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` without librdkafka's repeated messages about connections on stderr."""
    return {**config, "log_level": 0, "error_cb": lambda error: None}


def require_listener(settings: Settings, is_patient: bool = False) -> None:
    """Check that a broker's address takes a TCP connection. Raises BrokerUnreachable at once where none does.

    With `is_patient`, for programs that wait for a broker, it is logged instead. A local stack that is starting counts.
    """
    starting = not settings.kafka.bootstrap and held(State.of(settings).lock)
    if starting or not (reason := connect_error(f"Kafka at {settings.bootstrap}", addresses(settings))):
        return
    text = f"no Kafka broker answers at {settings.bootstrap} ({reason})"
    if not is_patient:
        raise BrokerUnreachable(f"{text}. {HINT}")
    log.warning(f"{text}; waiting for one. {HINT}")


class ConnectionProbe:
    """Connects a new client within a time limit, and finds the reason where it fails.

    Create the client from `silence(config)`, then call `metadata(client)`. For one client and one thread. `is_patient`:
    a program that waits for a broker, also where nothing listens.
    """

    def __init__(self, settings: Settings, timeout_s: float = TIMEOUT_S, is_patient: bool = False) -> None:
        self._settings, self._timeout_s, self._is_patient = settings, timeout_s, is_patient
        self._is_checked = False
        self._errors: list[KafkaError] = []

    def silence(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return `config` with librdkafka's errors going to this object instead of stderr."""
        return {**config, "log_level": 0, "error_cb": self._record}

    def _record(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._errors = [*self._errors[-4:], error]

    def metadata(self, client: Any, topic: str | None = None) -> Any:
        """Fetch the cluster's metadata, of all topics or one.

        Raises:
            KafkaAccessDenied: as soon as the broker has rejected the client.
            BrokerUnreachable: after the timeout; at once where nothing listens.
        """
        if not self._is_checked:
            require_listener(self._settings, self._is_patient)
            self._is_checked = True
        deadline, wait_s = time.monotonic() + self._timeout_s, 1.0
        while True:
            try:
                left = deadline - time.monotonic()
                return client.list_topics(*([topic] if topic else []), timeout=max(0.1, min(wait_s, left)))
            except KafkaException as error:
                client.poll(0)  # serves the error callback
                if denied := self.access_error():
                    raise denied from None
                if time.monotonic() + 0.1 > deadline:
                    raise self._unreachable(error.args[0]) from None
            time.sleep(0.1)
            wait_s *= 2

    def access_error(self) -> KafkaAccessDenied | None:
        """Return the reported error that no retry fixes, if any."""
        for error in self._errors:
            if denied := to_access_error(self._settings, error):
                return denied
            if error.code() == KafkaError._SSL and (text := self._certificate()):
                return KafkaAccessDenied(text)
            if re.search(r"alert (bad certificate|certificate|unknown ca)", error.str()):
                return KafkaAccessDenied(
                    f"{_place(self._settings)} wants another client certificate than it got; "
                    "see DRUMLINE_KAFKA__SSL_CERTIFICATE and DRUMLINE_KAFKA__SSL_KEY"
                )
        return None

    def _certificate(self) -> str:
        """Return a message about the broker with a rejected certificate; librdkafka does not name it. "" = none."""
        kafka = self._settings.kafka
        client = tls.context(kafka.ssl_ca)
        for host, port in addresses(self._settings):
            if text := tls.probe_certificate(host, port, client):
                hint = tls.certificate_hint(text, "DRUMLINE_KAFKA__BOOTSTRAP", "DRUMLINE_KAFKA__SSL_CA")
                return f"the certificate of Kafka at {host}:{port} is not accepted: {text}; {hint}"
        return ""

    def _unreachable(self, error: KafkaError) -> BrokerUnreachable:
        settings, protocol = self._settings, self._settings.kafka.security_protocol
        if text := advertised_error(settings):
            return BrokerUnreachable(text)
        encrypted = next((tls.accepts_tls(host, port) for host, port in addresses(settings)), False)
        if encrypted and "PLAINTEXT" in protocol:
            hint = f"the listener there uses TLS, and DRUMLINE_KAFKA__SECURITY_PROTOCOL is {protocol}"
        elif encrypted:
            hint = f"TLS works there, but not Kafka over it: is {protocol} the protocol of this listener?"
        elif "PLAINTEXT" not in protocol and any("SSL" in error.str() for error in self._errors):
            hint = f"nothing there uses TLS, and DRUMLINE_KAFKA__SECURITY_PROTOCOL is {protocol}"
        else:
            hint = HINT
        where = f"{settings.bootstrap} within {self._timeout_s:g} s ({error.name()})"
        return BrokerUnreachable(f"no Kafka broker answers at {where}. {hint}")


def _place(settings: Settings) -> str:
    return f"Kafka at {settings.bootstrap}"


def _sentence(error: KafkaError) -> str:
    """Return librdkafka's text without the broker's name before and the statistics after it."""
    text = re.sub(r"^\w+://\S+: ", "", error.str())
    return re.sub(r" \(after \d+ms in state \w+.*\)$", "", text).removeprefix("SASL authentication error: ")


def _login(error: KafkaError) -> str:
    if _sentence(error).endswith("supported mechanisms: "):
        return "(none): this listener has no SASL; set DRUMLINE_KAFKA__SECURITY_PROTOCOL"
    if "mechanism" in error.str() and "handshake" in error.str():
        return "; set DRUMLINE_KAFKA__SASL_MECHANISM"
    return "; check DRUMLINE_KAFKA__SASL_USERNAME and DRUMLINE_KAFKA__SASL_PASSWORD_FILE (or ..._PASSWORD)"
