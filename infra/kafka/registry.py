"""Schema ids from a Confluent-compatible registry, and `codec(settings)`, which all programs call.

The network is used at the start, and once for each new id; records of known ids are decoded from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from drumline.infra.config.settings import Settings
from drumline.infra.config.tenants import read_tenants
from drumline.infra.runtime import tls
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadSchema, RegistryRejected, RegistryUnavailable, UnknownSchema
from drumline.schemas.model import RecordModel, has_schema, model, parse_model
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.registry import lock_file_registry
from drumline.schemas.tenants import TenantGuard
from drumline.schemas.topics import Topic

TIMEOUT_S = 5.0
#: Time for which an unknown id is not queried again; s. Maximum number of such ids.
UNKNOWN_S = 30.0
UNKNOWN_IDS = 1024


def subject(topic: str) -> str:
    """Return the registry's name of a topic's values (Confluent's TopicNameStrategy)."""
    return f"{topic}-value"


class ConfluentRegistry:
    """Implements the Registry protocol with a registry's REST API. For one thread; new ids block for up to 20 s.

    `client`: confluent_kafka's SchemaRegistryClient. `register`: register missing schemas; else they must exist.
    `clock`: monotonic, s. Raises RegistryUnavailable when the registry does not answer in about 20 s,
    RegistryRejected when it denies access.
    """

    def __init__(
        self, client: Any, where: str, *, register: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._where = where
        self._register = register
        self._clock = clock
        self._ids: dict[str, int] = {}
        self._models: dict[int, RecordModel] = {}
        self._unknown: dict[int, float] = {}

    def id_of(self, topic: str) -> int:
        """Return the id of the topic's current schema; registers it, if allowed.

        Raises:
            BadSchema: the registry does not have the schema, or rejects it.
        """
        number = self._ids.get(topic)
        if number is None:
            number = self._ids[topic] = self._fetch_id(topic, model(topic))
            self._models[number] = model(topic)
        return number

    def id_of_version(self, topic: str, fingerprint: str) -> int:
        """Return the id of the topic's released schema with this fingerprint.

        Raises:
            UnknownSchema: no release has it.
            BadSchema: the registry does not have the schema, or rejects it.
        """
        if has_schema(topic) and model(topic).fingerprint == fingerprint:
            return self.id_of(topic)
        released = lock_file_registry()
        older = released.model_of(released.id_of_version(topic, fingerprint))
        return self._fetch_id(topic, older)

    def model_of(self, schema_id: int) -> RecordModel:
        """Return the schema with this id.

        Raises:
            UnknownSchema: the registry does not have the id, or it is no schema of drumline.
        """
        known = self._models.get(schema_id)
        if known is None:
            if self.in_memory(schema_id):
                raise UnknownSchema(f"schema id {schema_id} is not in the registry")
            try:
                known = self._models[schema_id] = self._fetch_model(schema_id)
            except UnknownSchema:
                self._unknown.pop(schema_id, None)
                if len(self._unknown) >= UNKNOWN_IDS:
                    del self._unknown[next(iter(self._unknown))]
                self._unknown[schema_id] = self._clock() + UNKNOWN_S
                raise
        return known

    def in_memory(self, schema_id: int) -> bool:
        """Return True if `model_of` answers without a network request."""
        return schema_id in self._models or self._unknown.get(schema_id, 0.0) > self._clock()

    def known(self, schema_id: int) -> RecordModel | None:
        """Return the schema with this id, if it is in memory; then it stays there."""
        return self._models.get(schema_id)

    def _fetch_id(self, topic: str, version: RecordModel) -> int:
        from confluent_kafka.schema_registry import Schema

        schema, name = Schema(version.text, "AVRO"), subject(topic)
        if self._register:
            status, number = self._request(lambda: self._client.register_schema(name, schema))
        else:
            status, number = self._request(lambda: self._client.lookup_schema(name, schema).schema_id)
        if status in (404, 409, 422):
            wish = "register it, or set DRUMLINE_KAFKA__REGISTRY_REGISTER=true" if status == 404 else "it is rejected"
            raise BadSchema(f"registry {self._where}, subject {name}: HTTP {status} for our schema; {wish}")
        return int(number)

    def _fetch_model(self, schema_id: int) -> RecordModel:
        status, schema = self._request(lambda: self._client.get_schema(schema_id))
        if status == 404:
            raise UnknownSchema(f"schema id {schema_id} is not in the registry")
        try:
            parsed = parse_model(f"schema id {schema_id}", schema.schema_str or "")
        except BadSchema:
            raise UnknownSchema(f"schema id {schema_id} is not a schema of drumline") from None
        current = (model(topic) for topic in (*Topic, MERGED) if has_schema(topic))
        return next((known for known in current if known.fingerprint == parsed.fingerprint), parsed)

    def _request(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """(200, answer), or (404 | 409 | 422, None). Other errors are those of the registry, not of the record."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return 200, call()
        except SchemaRegistryError as error:
            if error.http_status_code in (404, 409, 422):
                return int(error.http_status_code), None
            detail = f"HTTP {error.http_status_code}"
            if error.http_status_code in (401, 403):
                hint = "check DRUMLINE_KAFKA__REGISTRY_USER and DRUMLINE_KAFKA__REGISTRY_PASSWORD_FILE"
                raise RegistryRejected(
                    f"schema registry {self._where} rejects this client ({detail}); {hint}"
                ) from None
        except Exception as error:  # transport errors of the client's HTTP library
            detail = type(error).__name__
            if reason := tls.certificate_error_in(str(error)):
                hint = tls.certificate_hint(reason, "DRUMLINE_KAFKA__REGISTRY_URL", "DRUMLINE_CA")
                where = f"the certificate of schema registry {self._where}"
                raise RegistryRejected(f"{where} is not accepted: {reason}; {hint}") from None
        raise RegistryUnavailable(f"schema registry {self._where} does not answer ({detail})") from None


def connect(settings: Settings) -> ConfluentRegistry:
    """Return a client of the registry of the settings. Raises ModuleNotFoundError without the extra `registry`."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"DRUMLINE_KAFKA__REGISTRY_URL needs {error.name}", name="drumline[registry]"
        ) from None
    kafka = settings.kafka
    config: dict[str, Any] = {
        "url": kafka.registry_url,
        "timeout": TIMEOUT_S,
        "max.retries": 2,
        "retries.wait.ms": 200,
        "retries.max.wait.ms": 1000,
    }
    if kafka.registry_user:
        password = kafka.registry_password.get_secret_value() if kafka.registry_password else ""
        config["basic.auth.user.info"] = f"{kafka.registry_user}:{password}"
    if settings.ca is not None:
        config["ssl.ca.location"] = str(settings.ca)
    url = urlsplit(kafka.registry_url.split(",")[0])
    where = f"{url.hostname}:{url.port}" if url.port else str(url.hostname)
    return ConfluentRegistry(SchemaRegistryClient(config), where, register=kafka.registry_register)


def codec(settings: Settings, writes: Iterable[str] = ()) -> Codec:
    """Return the codec of this process: ids from the registry if one is configured, else from the lock file.

    `writes`: topics whose ids are fetched now, so that a wrong registry fails at the start. Raises
    RegistryUnavailable or RegistryRejected, or BadSchema if the registry or the lock file does not have the schema.
    """
    tenants = settings.kafka.tenants_file
    guard = TenantGuard(read_tenants(tenants)) if tenants is not None else None
    result = Codec(connect(settings) if settings.kafka.registry_url else None, guard)
    for topic in writes:
        result.registry.id_of(topic)
    return result
