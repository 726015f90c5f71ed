"""A stack that checks all access: Kafka with TLS, SCRAM and ACLs, the engine with users of its own behind TLS.

Certificates are made here (trustme) and last as long as the test session. The engine of the `chdb-core` wheel serves no
HTTPS, so `TlsFront`, a TLS-terminating relay of this file, stands before it as a load balancer would.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from pydantic import SecretStr
from support.fakes.tcp_proxy import Proxy

from drumline.infra.clickhouse.roles import reader_grants
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.local_credentials import sha256_hex
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.kafka.config import client_config
from drumline.infra.localstack.clickhouse import config as engine_config
from drumline.infra.localstack.clickhouse import engine
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, free_ports
from drumline.infra.localstack.kafka import broker
from drumline.infra.localstack.kafka.jars import ensure_jars
from drumline.infra.localstack.kafka.java import find_java
from drumline.infra.localstack.supervisor import Child

DOCS = Path(__file__).parents[2] / "docs" / "guide" / "security.md"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: Java's login modules, by mechanism.
MODULES = dict.fromkeys(MECHANISMS, "scram.ScramLoginModule") | {"PLAIN": "plain.PlainLoginModule"}
#: Listeners of the broker besides its controller's: name -> (protocol, which certificate it shows).
LISTENERS = {
    "SECURE": ("SASL_SSL", "good"),
    "MUTUAL": ("SSL", "good"),
    "EXPIRED": ("SASL_SSL", "expired"),
    "ELSEWHERE": ("SASL_SSL", "elsewhere"),
    "BARE": ("SASL_PLAINTEXT", "good"),  # takes PLAIN too
}


class Certificates:
    """PEM files: `ca`, `other_ca` (which signed nothing here), and key and chain in one file per server or client."""

    def __init__(self, folder: Path) -> None:
        self.folder, authority = folder, trustme.CA()
        folder.mkdir(mode=0o700)
        self.ca, self.other_ca = folder / "ca.pem", folder / "other-ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        trustme.CA().cert_pem.write_to_path(str(self.other_ca))
        expiry = datetime.now(UTC) - timedelta(days=2)
        self.issued = {
            "good": authority.issue_cert("127.0.0.1", "localhost"),
            "expired": authority.issue_cert("127.0.0.1", not_before=expiry, not_after=expiry + timedelta(days=1)),
            "elsewhere": authority.issue_cert("elsewhere.example"),
            "client": authority.issue_cert("client@example.com", common_name="client"),
        }
        for name, issued in self.issued.items():
            # Kafka reads PKCS#8 keys only.
            key = load_pem_private_key(issued.private_key_pem.bytes(), None)
            text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            (folder / f"{name}.key").write_bytes(text)
            (folder / f"{name}.pem").write_bytes(text + b"".join(pem.bytes() for pem in issued.cert_chain_pems))
            (folder / f"{name}.key").chmod(0o600)
            (folder / f"{name}.pem").chmod(0o600)

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"


def broker_properties(certificates: Certificates, ports: dict[str, int], controller: int, users: dict[str, str]) -> str:
    """Return overrides of the local broker's properties. `users`: name -> password; `broker` has every right."""
    listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    listed = ",".join([*listeners.values(), f"CONTROLLER://127.0.0.1:{controller}"])
    protocols = {name: protocol for name, (protocol, _) in LISTENERS.items()} | {"CONTROLLER": "PLAINTEXT"}
    lines = {
        "listeners": listed,
        "advertised.listeners": listed,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": "SECURE",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:broker;User:ANONYMOUS",  # ANONYMOUS: the controller's listener, between its own threads
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.ca,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.pem("good"),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
    }
    for name, (protocol, certificate) in LISTENERS.items():
        taken = {"SASL_SSL": MECHANISMS, "SASL_PLAINTEXT": tuple(MODULES), "SSL": ()}[protocol]
        if taken:
            lines[f"listener.name.{name.lower()}.sasl.enabled.mechanisms"] = ",".join(taken)
        for mechanism in taken:
            known = users if mechanism == "PLAIN" else {}  # those of SCRAM are in the broker's own log
            options = [
                f'username="broker" password="{users["broker"]}"',
                *(f'user_{n}="{p}"' for n, p in known.items()),
            ]
            login = f"org.apache.kafka.common.security.{MODULES[mechanism]} required {' '.join(options)};"
            lines[f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"] = login
        lines[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        lines[f"listener.name.{name.lower()}.ssl.keystore.location"] = certificates.pem(certificate)
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def secure_broker(
    settings: Settings, certificates: Certificates, ports: dict[str, int], users: dict[str, str]
) -> Child:
    """The local broker, as `drumline up` would run it, with `broker_properties`. `users`: SCRAM name -> password."""
    state = State.of(settings)
    state.create()
    command = broker.jvm(settings, find_java(), ensure_jars(settings))
    config = state.kafka / "server.properties"
    more = broker_properties(certificates, ports, settings.local.kafka_port + 1, users)
    config.write_text(broker.properties(settings) + more)
    config.chmod(0o600)
    scram = [f"{name}=[name={user},password={password}]" for user, password in users.items() for name in MECHANISMS]
    broker.format_storage(
        command, config, *(argument for mechanism in scram for argument in ("--add-scram", mechanism))
    )
    return Child(
        name="broker", argv=[*command, "kafka.Kafka", str(config)], cwd=str(state.kafka),
        log=str(state.logs / "broker.log"), stop="term", stop_s=broker.STOP_S,
    )  # fmt: skip


class TlsFront(Proxy):
    """TLS on a port of its own. `connections`: how many clients came, whether the handshake worked or not."""

    def __init__(self, target: int, certificate: Path, client_ca: Path | None = None) -> None:
        self.connections, self._context = 0, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        if client_ca is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_ca)
        super().__init__(target)

    def _serve(self, client: socket.socket) -> None:
        self.connections += 1
        try:
            secured = self._context.wrap_socket(client, server_side=True)
        except OSError:
            client.close()
            return
        super()._serve(secured)


def documented_acls() -> list[AclBinding]:
    """Return the ACLs that the kafka-acls commands of docs/guide/security.md create."""
    [block] = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    bindings = []
    for line in block.replace("\\\n", " ").splitlines():
        arguments = shlex.split(line)
        if not arguments:
            continue
        assert arguments[:2] == ["kafka-acls", "--add"], line
        pairs = list(zip(arguments[2::2], arguments[3::2], strict=True))
        given = {name: [value for option, value in pairs if option == name] for name, _ in pairs}
        pattern = ResourcePatternType[given.pop("--resource-pattern-type", ["literal"])[0].upper()]
        [principal] = given.pop("--allow-principal")
        operations = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in given.pop("--operation")]
        for kind, names in given.items():
            bindings += [
                AclBinding(
                    ResourceType[kind.removeprefix("--").upper()], name, pattern, principal, "*",
                    AclOperation[operation], AclPermissionType.ALLOW,
                )
                for name in names for operation in operations
            ]  # fmt: skip
    return bindings


def documented_grants() -> dict[str, list[str]]:
    """User -> its GRANT statements in docs/guide/security.md, without the TO; the reader's are roles.sql's."""
    [block] = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    grants = {"reader": reader_grants("gpu")}
    for statement in filter(None, (part.strip() for part in re.sub(r"--.*", "", block).split(";"))):
        grant, role = statement.rsplit(" TO ", 1)
        grants.setdefault(role, []).append(" ".join(grant.split()))
    return grants


def users_template(passwords: dict[str, str]) -> str:
    """users.xml of the local engine with the documented roles besides its own users."""
    template = (engine_config.RESOURCES / "users.xml").read_text()
    roles = ""
    for role, grants in documented_grants().items():
        queries = "".join(f"<query>{grant}</query>" for grant in grants)
        secret = sha256_hex(SecretStr(passwords[role]))
        roles += f"<{role}><password_sha256_hex>{secret}</password_sha256_hex><grants>{queries}</grants></{role}>"
    return template.replace("</users>", roles + "</users>")


class SecureStack:
    """Broker and engine that run. `passwords`: of the Kafka and ClickHouse users of the same name."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.certificates = Certificates(folder / "certificates")
        names: set[str] = {"broker", "nobody"} | {str(acl.principal).removeprefix("User:") for acl in documented_acls()}
        self.passwords = {
            name: f"{name}-{secrets.token_urlsafe(9)}" for name in sorted(names | set(documented_grants()))
        }
        self.ports = dict(zip(LISTENERS, [settings.local.kafka_port, *free_ports(len(LISTENERS) - 1)], strict=True))
        for name, password in self.passwords.items():
            engine_config.write_private(self.password_file(name), password + "\n")
        self.fronts = {
            name: TlsFront(settings.local.clickhouse_http_port, self.certificates.pem(name))
            for name in ("good", "expired", "elsewhere")
        }
        certificate = self.certificates.pem("good")
        self.fronts["mutual"] = TlsFront(settings.local.clickhouse_http_port, certificate, self.certificates.ca)

    def password_file(self, name: str) -> Path:
        return self.folder / f"{name}.password"

    def settings_of(self, user: str, listener: str = "SECURE", front: str = "good") -> Settings:
        """Settings of a program that is `user` in Kafka and ClickHouse."""
        kafka = KafkaSettings(
            bootstrap=f"127.0.0.1:{self.ports[listener]}", partitions=2, security_protocol="SASL_SSL",
            sasl_username=user, sasl_password_file=self.password_file(user), ssl_ca=self.certificates.ca,
        )  # fmt: skip
        clickhouse = ClickHouseSettings(
            url=f"https://127.0.0.1:{self.fronts[front].port}", user=user, password_file=self.password_file(user),
            reader="reader", reader_password_file=self.password_file("reader"),
        )  # fmt: skip
        return self.settings.model_copy(update={"kafka": kafka, "clickhouse": clickhouse, "ca": self.certificates.ca})

    def environment_of(self, user: str, listener: str = "SECURE", front: str = "good") -> dict[str, str]:
        return environment(self.settings_of(user, listener, front))

    def admin(self) -> AdminClient:
        """As `broker`, who may everything."""
        return AdminClient(client_config(self.settings_of("broker"), "test"))


@contextmanager
def running_secure_stack(folder: Path) -> Iterator[SecureStack]:
    """Broker and engine with the documented ACLs and grants and no others; stopped at the end."""
    stack = SecureStack(ephemeral_settings(folder / "state"), folder)
    with ExitStack() as ending, pytest.MonkeyPatch.context() as patch:
        resources = folder / "resources"
        shutil.copytree(engine_config.RESOURCES, resources)
        (resources / "users.xml").write_text(users_template(stack.passwords))
        patch.setattr(engine_config, "RESOURCES", resources)
        ending.callback(lambda: [front.close() for front in stack.fronts.values()])
        child = secure_broker(stack.settings, stack.certificates, stack.ports, stack.passwords)
        child.start(time.monotonic())
        ending.callback(child.end)
        ending.enter_context(engine.temporary_engine(stack.settings))
        broker_settings = stack.settings_of("broker")
        alive = child.process.poll if child.process else lambda: 1
        if not engine.wait_until(lambda: broker.broker_answers(broker_settings), 120, lambda: alive() is None):
            raise AssertionError(engine.log_tail(State.of(stack.settings).logs / "kafka.log", 20))
        admin = stack.admin()
        for future in admin.create_acls(documented_acls()).values():
            future.result(20)
        yield stack
