"""Certificates, passwords and denials in settings, clients and programs; without Kafka or ClickHouse."""

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import SecretStr, ValidationError
from support.fakes.registry import FakeRegistry
from support.secure_stack import Certificates, TlsFront
from typer.testing import CliRunner

from drumline.cli import app as cli
from drumline.cli.operate import config as command_config
from drumline.infra.clickhouse import tls as clickhouse_tls
from drumline.infra.clickhouse.client import PermanentError, TransientError, failure
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import Settings, settings
from drumline.infra.kafka import registry as registry_client
from drumline.infra.kafka.acls import format_acls
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import (
    BrokerUnreachable,
    ConnectionProbe,
    KafkaAccessDenied,
    addresses,
    silence_librdkafka,
    to_access_error,
)
from drumline.infra.runtime import tls
from drumline.infra.telemetry import insecure as exposure
from drumline.infra.telemetry.secrets import HIDDEN
from drumline.schemas.errors import RegistryRejected
from drumline.streams.worker.checks import auth_errors as worker_auth
from drumline.streams.worker.stage_runner import UnreadableState

SECRET = "hush-4711"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture
def server():
    """(port, connections): connections to it are taken, noted and hung up."""
    listener, accepted = socket.create_server(("127.0.0.1", 0)), []

    def hang_up():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            accepted.append(client)
            client.close()

    threading.Thread(target=hang_up, daemon=True).start()
    yield listener.getsockname()[1], accepted
    listener.close()


def sasl(**more):
    return KafkaSettings(
        **{"security_protocol": "SASL_SSL", "sasl_username": "me", "sasl_password": SecretStr(SECRET), **more}
    )


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("KAFKA__SASL_PASSWORD_FILE", "{tmp}/none", "KAFKA__SASL_PASSWORD_FILE: cannot read {tmp}/none: No such file"),
        ("CLICKHOUSE__PASSWORD_FILE", "{tmp}/empty", "CLICKHOUSE__PASSWORD_FILE: {tmp}/empty is empty"),
        ("KAFKA__SSL_CA", "{tmp}/empty", "KAFKA__SSL_CA: no CA certificates (PEM) in {tmp}/empty"),
        ("KAFKA__SSL_KEY", "{tmp}/empty", "KAFKA__SSL_CERTIFICATE and DRUMLINE_KAFKA__SSL_KEY: both or neither"),
        ("KAFKA__SECURITY_PROTOCL", SECRET, "DRUMLINE_KAFKA__SECURITY_PROTOCL: no such setting (DRUMLINE_KAFKA__SECU"),
        ("CLICKHOUSE__RETENTION__KERNELS", "1", "DRUMLINE_CLICKHOUSE__RETENTION__KERNELS: no such setting"),
        ("KAFKA", f'{{"sasl_pasword": "{SECRET}"}}', "DRUMLINE_KAFKA__SASL_PASWORD: no such setting; `drumline "),
        ("KAFKA", SECRET, "DRUMLINE_KAFKA: a section of the settings; set DRUMLINE_KAFKA__..."),
        ("KAFKA__SECURITY_PROTOCOL", "SASL_SSL", "needs DRUMLINE_KAFKA__SASL_USERNAME"),
        ("CLICKHOUSE__URL", f"https://me:{SECRET}@host:8443", "CLICKHOUSE__URL: no user or password in the URL"),
        ("KAFKA__REGISTRY_URL", f"https://me:{SECRET}@host", "KAFKA__REGISTRY_URL: no user or password in the URL"),
        ("KAFKA", f'{{"sasl_password": "{SECRET}", "partitions": "{SECRET}"}}', "DRUMLINE_KAFKA__PARTITIONS: "),
    ],
)
def test_a_wrong_setting_exits_2_and_is_named_but_not_shown(tmp_path, monkeypatch, capsys, setting, value, message):
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv(f"DRUMLINE_{setting}", value.replace("{tmp}", str(tmp_path)))
    monkeypatch.setattr(command_config, "settings", settings.__wrapped__)
    monkeypatch.setattr("sys.argv", ["drumline", "config"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.replace("{tmp}", str(tmp_path)) in errors
    assert SECRET not in errors
    assert len(errors.splitlines()) == 1
    with pytest.raises(ValueError) as raised:
        settings.__wrapped__()
    assert SECRET not in f"{raised.value}{raised.value!r}"


def test_certificate_and_key_must_fit(certificates):
    files = {"ssl_certificate": certificates.pem("client"), "ssl_key": certificates.folder / "good.key"}
    with pytest.raises(ValidationError, match=r"SSL_CERTIFICATE, DRUMLINE_KAFKA__SSL_KEY.*mismatch"):
        KafkaSettings(**files)


def test_config_masks_secrets(tmp_path, monkeypatch):
    (tmp_path / "password").write_text(f"{SECRET}\r\n")
    changed_settings = Settings(
        kafka=sasl(sasl_password=None, sasl_password_file=tmp_path / "password"),
        clickhouse=ClickHouseSettings(password=SecretStr(SECRET)),
    )
    assert changed_settings.kafka.sasl_password.get_secret_value() == SECRET
    monkeypatch.setattr(command_config, "settings", lambda: changed_settings)
    shown = CliRunner().invoke(command_config.app, []).output
    assert shown.count(HIDDEN) == 2
    assert SECRET not in shown + repr(changed_settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Settings(kafka=sasl(security_protocol="SASL_PLAINTEXT", bootstrap="k:9092")),
            "everything but the password can",
        ),
        (
            Settings(
                kafka=sasl(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", bootstrap="127.0.0.1:1, k:9")
            ),
            "the password and everything else can",
        ),
        (Settings(kafka=sasl(security_protocol="SSL", bootstrap="k:9092")), "gets no password"),
        (Settings(kafka=sasl(registry_url="http://r:8081", registry_password=SecretStr(SECRET))), "schema registry"),
        (Settings(clickhouse=ClickHouseSettings(url="http://c:8123")), "the password for ClickHouse"),
    ],
)
def test_what_others_can_read_or_take_is_a_warning(settings, message):
    [text] = exposure.kafka_exposure(settings) + exposure.clickhouse_exposure(settings)
    assert message in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "settings",
    [
        Settings(kafka=sasl(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", bootstrap="[::1]:9092")),
        Settings(kafka=sasl(bootstrap="k:9093"), clickhouse=ClickHouseSettings(url="https://c:8443")),
        Settings(clickhouse=ClickHouseSettings(url="http://localhost:8123")),
        Settings(),
    ],
)
def test_loopback_and_tls_are_no_reason_to_warn(settings):
    assert exposure.kafka_exposure(settings) + exposure.clickhouse_exposure(settings) == []


def test_a_warning_comes_once(caplog):
    settings = Settings(kafka=sasl(security_protocol="SSL", bootstrap="once:9092"))
    with caplog.at_level(logging.WARNING):
        client_config(settings, "a")
        client_config(settings, "b")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("front", "ca", "message"),
    [
        ("good", "ca", ""),
        ("good", "other_ca", "unable to get local issuer certificate"),
        ("expired", "ca", "certificate has expired"),
        ("elsewhere", "ca", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_found_out(certificates, front, ca, message):
    listening = TlsFront(1, certificates.pem(front))
    assert tls.probe_certificate("127.0.0.1", listening.port, tls.context(getattr(certificates, ca))) == message
    assert tls.accepts_tls("127.0.0.1", listening.port)
    listening.close()


def test_a_server_without_tls_is_recognised(server):
    port, _ = server
    assert not tls.accepts_tls("127.0.0.1", port)
    assert tls.probe_certificate("127.0.0.1", port, tls.context(None)) == ""


def test_a_broker_that_hangs_up_is_given_up_in_time(server):
    settings = Settings(kafka=KafkaSettings(bootstrap=f"127.0.0.1:{server[0]}"))
    contact = ConnectionProbe(settings, timeout_s=1.0)
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker answers at 127\.0\.0\.1:\d+ within 1 s"):
        contact.metadata(AdminClient(contact.silence(client_config(settings, "test"))))


def seldom(times: int, since: float) -> bool:
    """Check that it is far from the 20 times a second of librdkafka's defaults. Also true of a machine that
    is so busy that what takes a second takes ten."""
    return 1 <= times <= 6 + 4 * (time.monotonic() - since)


def test_a_wrong_certificate_is_no_reason_to_storm(certificates):
    began = time.monotonic()
    front = TlsFront(1, certificates.pem("good"))
    settings = Settings(kafka=sasl(bootstrap=f"127.0.0.1:{front.port}", ssl_ca=certificates.other_ca))
    client = AdminClient(silence_librdkafka(client_config(settings, "test")))
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)  # as a long-running client would go on
    assert seldom(front.connections, began)
    del client
    before, contact, began = front.connections, ConnectionProbe(settings), time.monotonic()
    with pytest.raises(KafkaAccessDenied, match=r"unable to get local issuer certificate; DRUMLINE_KAFKA__SSL_CA must"):
        contact.metadata(AdminClient(contact.silence(client_config(settings, "test"))))
    assert seldom(front.connections - before, began)
    front.close()


class Refusing:
    """A broker that takes every connection as far as the password, and rejects that. `logins`: how often it was asked.

    Answers: ApiVersions 0 (handshake 1, authenticate 0 and itself), SaslHandshake, SaslAuthenticate."""

    def __init__(self):
        self.logins, self._listener = 0, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError, struct.error), client.makefile("rb") as stream:
            while True:
                (size,) = struct.unpack(">i", stream.read(4))
                api, version, number = struct.unpack_from(">hhi", request := stream.read(size))
                if api == 18:  # an unknown version is answered in version 0
                    apis = ((3, 0, 4), (17, 0, 1), (18, 0, 0), (36, 0, 0))
                    body = struct.pack(">hi", 35 if version else 0, len(apis)) + b"".join(
                        struct.pack(">hhh", *api) for api in apis
                    )
                elif api == 17:
                    body = struct.pack(">hih5s", 0, 1, 5, b"PLAIN")
                else:
                    assert api == 36, request
                    self.logins += 1
                    body = struct.pack(">hh2si", 58, 2, b"no", 0)
                client.sendall(struct.pack(">ii", len(body) + 4, number) + body)


def test_a_wrong_password_is_no_reason_to_storm():
    broker, began = Refusing(), time.monotonic()
    kafka = sasl(bootstrap=f"127.0.0.1:{broker.port}", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
    settings = Settings(kafka=kafka)
    client = AdminClient(silence_librdkafka(client_config(settings, "test")))
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)  # as a long-running client would go on
    assert seldom(broker.logins, began)
    del client
    before, contact, began = broker.logins, ConnectionProbe(settings), time.monotonic()
    with pytest.raises(KafkaAccessDenied, match="rejects user me: no; check DRUMLINE_KAFKA__SASL_USERNAME"):
        contact.metadata(AdminClient(contact.silence(client_config(settings, "test"))))
    assert seldom(broker.logins - before, began)
    broker.close()


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        (KafkaError._AUTHENTICATION, "ssl://k:1/bootstrap: SASL authentication error: no (after 3ms in state AUTH)",
         "rejects user me: no; check DRUMLINE_KAFKA__SASL_USERNAME"),
        (KafkaError._AUTHENTICATION, "k: SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: "
         "broker's supported mechanisms: SCRAM-SHA-512 (after 1ms in state AUTH_HANDSHAKE)",
         "mechanisms: SCRAM-SHA-512; set DRUMLINE_KAFKA__SASL_MECHANISM"),
        (KafkaError._AUTHENTICATION, "k: SASL PLAIN mechanism handshake failed: Broker: Request not valid in current "
         "SASL state: broker's supported mechanisms:  (after 0ms in state AUTH_HANDSHAKE)",
         "mechanisms: (none): this listener has no SASL; set DRUMLINE_KAFKA__SECURITY_PROTOCOL"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "Broker: no", "denies user me: Read on group g"),
    ],
)  # fmt: skip
def test_a_denial_differs_from_a_broker_that_is_down(code, text, message):
    settings = Settings(kafka=sasl(bootstrap="k:1"))
    result = to_access_error(settings, KafkaError(code, text), "Read on group g")
    assert isinstance(result, KafkaAccessDenied)
    assert message in str(result)
    assert SECRET not in str(result)
    assert to_access_error(settings, KafkaError(KafkaError._TRANSPORT, "Connection refused")) is None


def test_rights_that_are_lacked_alike_come_together():
    lacks = [("READ", "topic", "b"), ("DESCRIBE_CONFIGS", "topic", "a"), ("DESCRIBE_CONFIGS", "topic", "b"),
             ("READ", "topic", "a"), ("READ", "group", "g")]  # fmt: skip
    assert format_acls(lacks) == "DescribeConfigs, Read on topic a, b; Read on group g"


def test_bootstrap_addresses_of_every_kind():
    settings = Settings(kafka=KafkaSettings(bootstrap="a:1, [::1]:2,b.c:3, odd"))
    assert addresses(settings) == [("a", 1), ("::1", 2), ("b.c", 3)]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("(SSLError('[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1)'",
         PermanentError, "self-signed certificate; DRUMLINE_CA must"),
        ("(SSLError('[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1)'",
         PermanentError, "certificate has expired; the server needs"),
        ("(SSLError(1, '[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2)'))",
         PermanentError, "DRUMLINE_CLICKHOUSE__CERTIFICATE"),
        ("(SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)'))",
         PermanentError, "does not use TLS"),
        ("(SSLEOFError(8, 'EOF occurred in violation of protocol (_ssl.c:2427)'))",
         TransientError, clickhouse_tls.CLOSED),
    ],
)  # fmt: skip
def test_a_tls_error_of_clickhouse_is_one_sentence_and_a_decision(text, kind, message):
    result = failure(RuntimeError(f"HTTPSConnectionPool(host='c'): Max retries exceeded (Caused by {text}"))
    assert type(result) is kind
    assert message in str(result)
    assert "HTTPSConnectionPool" not in str(result)


@pytest.mark.parametrize(
    "error", [TopicAuthorizationFailedError("drumline.tick.v1"), UnreadableState("job", ValueError("windows of 5"))]
)
@pytest.mark.parametrize("raised", [True, False])
def test_a_refusal_is_one_line_whatever_faust_stops_because_of_it(error, raised):
    def record(error, raised=True):
        arguments = ((), (type(error), error, None)) if raised else ((error,), None)
        return logging.LogRecord("faust", logging.ERROR, "", 0, "crashed" if raised else "crashed %r", *arguments)

    one_line, logged = worker_auth.OneLineErrors(Settings()), record(error, raised)
    closed, bug = RuntimeError("Event loop is closed"), RuntimeError("a bug")
    assert one_line.filter(record(closed)), "no client was rejected: it may be a defect of drumline"
    assert one_line.filter(logged)
    assert logged.exc_info is None
    assert [one_line.filter(record(error)) for error in (closed, asyncio.CancelledError(), bug)] == [False, False, True]


def test_a_silent_worker_probes_seldom_and_ends_when_kafka_denies():
    queried = []

    async def run():
        access = worker_auth.AccessProbe(
            Settings(), lambda _settings: queried.append(1) or ("" if len(queried) == 1 else "no")
        )
        for silence, now in ((1.0, 0.0), (11.0, 10.0), (12.0, 11.0), (19.0, 18.0), (22.0, 21.0)):
            access.observe(silence, now)
            await asyncio.sleep(0.05)
        return access.reason

    assert asyncio.run(run()) == "no"
    assert len(queried) == 2


def test_key_passwords_are_never_asked_for_on_the_terminal(certificates, tmp_path):
    key = load_pem_private_key((certificates.folder / "client.key").read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode())))
    files = {"ssl_certificate": certificates.pem("client"), "ssl_key": locked}
    with pytest.raises(ValidationError, match="SSL_KEY"):
        KafkaSettings(**files)


@pytest.fixture
def registry_front(certificates):
    """A registry behind TLS: certificate -> (front, settings that trust `ca`)."""
    registry, fronts = FakeRegistry(), []

    def front(certificate, ca="ca"):
        fronts.append(TlsFront(urlsplit(registry.url).port, certificates.pem(certificate)))
        url = f"https://127.0.0.1:{fronts[-1].port}"
        return fronts[-1], Settings(kafka=KafkaSettings(registry_url=url), ca=getattr(certificates, ca))

    yield front
    for tls_front in fronts:
        tls_front.close()
    registry.go()


def test_a_registry_whose_certificate_is_good_answers(registry_front):
    front, settings = registry_front("good")
    assert registry_client.connect(settings).id_of("gpu.kernel.v1") == 100
    assert front.connections == 1


@pytest.mark.parametrize(
    ("certificate", "ca", "message"),
    [
        ("good", "other_ca", "unable to get local issuer certificate; DRUMLINE_CA must"),
        ("expired", "ca", "certificate has expired; the server needs"),
        ("elsewhere", "ca", "IP address mismatch, .*; DRUMLINE_KAFKA__REGISTRY_URL must"),
    ],
)
def test_a_registry_whose_certificate_is_not_accepted_is_named(registry_front, certificate, ca, message):
    front, settings = registry_front(certificate, ca)
    with pytest.raises(RegistryRejected, match=f"not accepted: {message}"):
        registry_client.connect(settings).id_of("gpu.kernel.v1")
    assert 1 <= front.connections <= 8
