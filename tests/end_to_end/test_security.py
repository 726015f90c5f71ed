"""The whole path on a stack that checks all access: with the ACLs and grants of docs/guide/security.md, and without."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr
from support.activity_builder import lockstep
from support.labs.sink import any_batch
from support.metrics_scraper import free_port, get, of, samples, until
from support.secure_stack import running_secure_stack

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.kafka.acls import require_acls
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import BrokerUnreachable, ConnectionProbe, KafkaAccessDenied
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.runtime.processes import ManagedProcess, check_all
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.sinks.audit.audit import audit
from drumline.sinks.audit.kafka_side import KafkaFacts
from drumline.sinks.audit.queries import Queries
from drumline.streams.worker.faust_config import credentials

pytestmark = [pytest.mark.stack, pytest.mark.long]
POISON = b"not a record"
#: Programs that keep running, and their users.
PROGRAMS = (("stream", "worker"), ("sink", "sink"), ("exporter", "exporter"))


@pytest.fixture(scope="module")
def secure(jars, tmp_path_factory):
    with running_secure_stack(tmp_path_factory.mktemp("secure")) as stack:
        yield stack


@pytest.fixture(scope="module")
def drumline(secure):
    """Run a command as a user; (exit code, stdout, stderr)."""

    def run(user, *arguments, **changed):
        environment = {**secure.environment_of(user), **{f"DRUMLINE_{name}": str(v) for name, v in changed.items()}}
        command = [sys.executable, "-m", "drumline.cli.app", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return lockstep(ranks=2, steps=12).write(tmp_path_factory.mktemp("recording") / "job", ranks=2)


@pytest.fixture(scope="module")
def programs(secure, drumline, tmp_path_factory):
    """Start worker, sink and exporter over topics and tables, each as its own user; return name -> ManagedProcess."""
    for command in (["topics", "apply"], ["migrate"]):
        code, _, errors = drumline("operator", *command)
        assert (code, errors) == (0, "")
    folder, started = tmp_path_factory.mktemp("programs"), {}
    for (name, user), port in zip(PROGRAMS, free_ports(len(PROGRAMS)), strict=True):
        environment = {**secure.environment_of(user), "DRUMLINE_METRICS_PORT": str(port)}
        environment |= {"DRUMLINE_STREAM__IDLE_S": "1", "DRUMLINE_LOG_LEVEL": "DEBUG"}
        started[name] = ManagedProcess(name, [name], folder / f"{name}.log", environment, restarts=0)
        started[name].port = port
        started[name].start()
    yield started
    for program in started.values():
        program.stop()


def report(secure):
    """The audit, as `auditor`."""
    auditor = secure.settings_of("auditor")
    facts = KafkaFacts(auditor)
    try:
        return audit(facts, Queries(clickhouse.connect(auditor), auditor))
    finally:
        facts.close()


def test_the_whole_path_with_the_documented_rights_and_no_others(secure, drumline, programs, job):
    code, out, errors = drumline("producer", "replay", job, "--speed", "max", "--json")
    assert (code, errors) == (0, "")
    published = json.loads(out)["rows"]
    producer = Producer(client_config(secure.settings_of("producer"), "test"))
    producer.produce(Topic.KERNEL, POISON, "key")
    assert producer.flush(20) == 0

    def stored():
        stored = {account.topic: account.rows_stored for account in report(secure).topics}
        return stored.get(Topic.STRAGGLER, 0) > 0 and {t: stored[t] for t in published} == published

    assert wait_until(stored, 90, lambda: check_all(programs.values()) is None)
    assert wait_until(lambda: report(secure).clean, 60), report(secure).findings
    code, out, _ = drumline("operator", "dlq", "list", "--json")
    assert code == 0
    assert {group["by"] for group in json.loads(out)["groups"]} == {"sink", "drumline-streams"}
    assert drumline("operator", "dlq", "replay", Topic.KERNEL, "--yes")[0] == 0
    code, out, _ = drumline("reader", "sql", "--json", "SELECT count() AS n FROM kernels")
    assert (code, json.loads(out)["n"]) == (0, published[Topic.KERNEL])


def test_secrets_are_in_no_log_no_metric_and_no_argument(secure, drumline, programs):
    output = drumline("operator", "config")[1]
    for program in programs.values():
        output += program.log.read_text() + " ".join(psutil.Process(program.pid).cmdline())
        for path in ("metrics", "healthz", "readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{program.port}/{path}", timeout=10) as answer:
                output += answer.read().decode()
    assert "sasl_password" in output
    assert "drumline_sink_stored_rows_total" in output
    assert 'drumline_exporter_input_records_total{topic="gpu.process.v1"}' in output, "its rights are enough"
    for name, password in secure.passwords.items():
        assert password not in output, name


KAFKA = {
    "other authority": (
        {"ssl_ca": "other_ca"},
        "SECURE",
        "unable to get local issuer certificate; DRUMLINE_KAFKA__SSL_CA",
    ),
    "expired": ({}, "EXPIRED", "certificate has expired; the server needs"),
    "other host": ({}, "ELSEWHERE", "IP address mismatch.*DRUMLINE_KAFKA__BOOTSTRAP must use a name"),
    "wrong password": (
        {"sasl_password": SecretStr("wrong"), "sasl_password_file": None},
        "SECURE",
        "rejects user worker: .*check DRUMLINE_KAFKA__SASL",
    ),
    "unknown user": ({"sasl_username": "ghost"}, "SECURE", "rejects user ghost"),
    "wrong mechanism": ({"sasl_mechanism": "PLAIN"}, "SECURE", "set DRUMLINE_KAFKA__SASL_MECHANISM"),
    "no certificate": ({"security_protocol": "SSL"}, "MUTUAL", "DRUMLINE_KAFKA__SSL_CERTIFICATE"),
}


def changed(secure, listener, **kafka):
    """Settings of `worker` with other Kafka settings."""
    auditor = secure.settings_of("worker", listener)
    if "ssl_ca" in kafka:
        kafka["ssl_ca"] = getattr(secure.certificates, kafka["ssl_ca"])
    return auditor.model_copy(update={"kafka": auditor.kafka.model_copy(update=kafka)})


@pytest.mark.parametrize("cause", KAFKA)
def test_kafka_refuses_and_the_setting_is_named_at_once(secure, cause):
    kafka, listener, output = KAFKA[cause]
    started = time.monotonic()
    with pytest.raises(KafkaAccessDenied, match=output) as raised:
        require_acls(changed(secure, listener, **kafka), "test", {"gpu.kernel.v1": ("READ",)})
    assert time.monotonic() - started < 9  # it did not try until the time was over
    assert not any(password in str(raised.value) for password in secure.passwords.values())


def test_a_listener_with_tls_is_recognised_by_a_client_without(secure):
    auditor = changed(secure, "SECURE", security_protocol="PLAINTEXT")
    contact = ConnectionProbe(auditor, timeout_s=1.0)
    with pytest.raises(BrokerUnreachable, match="uses TLS, and DRUMLINE_KAFKA__SECURITY_PROTOCOL is PLAINTEXT"):
        contact.metadata(AdminClient(contact.silence(client_config(auditor, "test"))))


def test_client_certificates_are_who_a_program_is(secure):
    files = {"ssl_certificate": secure.certificates.pem("client"), "ssl_key": secure.certificates.folder / "client.key"}
    auditor = changed(secure, "MUTUAL", security_protocol="SSL", **files)
    with pytest.raises(KafkaAccessDenied, match="the owner of this client's certificate lacks ACLs: Read on topic"):
        require_acls(auditor, "test", {"gpu.kernel.v1": ("READ",)})

    asyncio.run(as_faust_does(auditor))


async def as_faust_does(auditor):
    from aiokafka import AIOKafkaProducer
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

    producer = AIOKafkaProducer(
        bootstrap_servers=auditor.bootstrap, **credentials_to_aiokafka_auth(credentials(auditor))
    )
    try:
        await producer.start()
    finally:
        await producer.stop()


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SECURE", "SCRAM-SHA-256"), ("SECURE", "SCRAM-SHA-512"), ("BARE", "SCRAM-SHA-256"), ("BARE", "PLAIN")],
)
def test_both_kafka_clients_use_every_mechanism_with_tls_and_without(secure, programs, listener, mechanism):
    protocol = {"SECURE": "SASL_SSL", "BARE": "SASL_PLAINTEXT"}[listener]
    auditor = changed(secure, listener, security_protocol=protocol, sasl_mechanism=mechanism)
    require_acls(auditor, "test", {"gpu.kernel.v1": ("READ",)})
    asyncio.run(as_faust_does(auditor))
    auditor.kafka.sasl_password, auditor.kafka.sasl_password_file = SecretStr("wrong"), None
    with pytest.raises(KafkaAccessDenied, match="rejects user worker"):
        require_acls(auditor, "test", {"gpu.kernel.v1": ("READ",)})


def test_the_agent_publishes_over_tls_and_reports_which_server_denies_it(secure, programs, tmp_path):
    agents = {}
    for name, more in (
        ("right", {}), ("wrong", {"DRUMLINE_KAFKA__SASL_PASSWORD_FILE": str(secure.password_file("nobody"))}),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        spool, batch = (
            SpoolWriter(tmp_path / name, any_batch(Topic.PROCESS, 1, name, 0).envelope),
            any_batch(Topic.KERNEL, 50, name, 0),
        )
        spool.append(Topic.KERNEL, name, encode(model(Topic.KERNEL), batch), 50)
        port = free_port()
        environment = {**secure.environment_of("producer"), "DRUMLINE_METRICS_PORT": str(port), **more}
        agent = ManagedProcess(
            "agent", ["agent", "--spool", str(tmp_path / name)], tmp_path / f"{name}.log", environment, 0
        )
        agent.start()
        agents[name] = agent, port
    try:
        port = agents["right"][1]
        published = of("drumline_agent_published_rows_total", Topic.KERNEL)
        until(lambda: samples(port).get(published) == 50 and get(port, "/readyz")[0] == 200)
        port = agents["wrong"][1]
        output = until(lambda: (answer := get(port, "/readyz"))[0] == 503 and "rejects" in answer[1] and answer[1])
        assert "rejects user producer" in json.loads(output)["reasons"]["kafka"]
        assert get(port, "/healthz")[0] == 200, "it waits: what it has is safe in the spool"
        time.sleep(10)
        check_all(agent for agent, _ in agents.values())
    finally:
        for agent, _ in agents.values():
            agent.stop()
    log = agents["wrong"][0].log.read_text()
    assert len(log.splitlines()) < 15
    assert not any(password in log + output for password in secure.passwords.values())


def test_an_agent_uses_a_password_that_is_changed_while_it_runs(secure, programs, tmp_path):
    """Sessions outlive a change in Kafka; at the next connection the file has the new one, or has it a little later."""
    password, spool = tmp_path / "password", tmp_path / "spool"
    spool.mkdir()
    password.write_text("of before")
    writer = SpoolWriter(spool, any_batch(Topic.PROCESS, 1, "rotated", 0).envelope)
    writer.append(Topic.KERNEL, "rotated", encode(model(Topic.KERNEL), any_batch(Topic.KERNEL, 50, "rotated", 0)), 50)
    port = free_port()
    environment = secure.environment_of("producer") | {
        "DRUMLINE_METRICS_PORT": str(port), "DRUMLINE_KAFKA__SASL_PASSWORD_FILE": str(password),
    }  # fmt: skip
    agent = ManagedProcess("agent", ["agent", "--spool", str(spool)], tmp_path / "log", environment, restarts=0)
    agent.start()
    try:
        until(lambda: "rejects user producer" in get(port, "/readyz")[1])
        password.write_text(secure.passwords["producer"])
        published = of("drumline_agent_published_rows_total", Topic.KERNEL)
        until(lambda: samples(port).get(published) == 50 and get(port, "/readyz")[0] == 200)
        agent.check()
        assert agent.exits == []
    finally:
        agent.stop()
    assert secure.passwords["producer"] not in agent.log.read_text()


CLICKHOUSE = {
    "other authority": ({"ca": "other_ca"}, "good", "not accepted: unable to get local.*DRUMLINE_CA must"),
    "expired": ({}, "expired", "not accepted: certificate has expired"),
    "other host": ({}, "elsewhere", "not accepted: IP address mismatch.*DRUMLINE_CLICKHOUSE__URL must"),
    "wrong password": (
        {"password": SecretStr("wrong")},
        "good",
        "Authentication failed.*DRUMLINE_CLICKHOUSE__PASSWORD_FILE",
    ),
    "no certificate": ({}, "mutual", "DRUMLINE_CLICKHOUSE__CERTIFICATE"),
}


@pytest.mark.parametrize("cause", CLICKHOUSE)
def test_clickhouse_refuses_and_the_setting_is_named_at_once(secure, cause):
    settings, front, output = CLICKHOUSE[cause]
    auditor = secure.settings_of("sink", front=front)
    if "ca" in settings:
        auditor.ca = secure.certificates.other_ca
    else:
        auditor = auditor.model_copy(update={"clickhouse": auditor.clickhouse.model_copy(update=settings)})
    before = secure.fronts[front].connections
    with pytest.raises(clickhouse.ClickHouseFailed, match=output) as raised:
        clickhouse.connect(auditor)
    assert secure.fronts[front].connections - before <= 2
    assert isinstance(raised.value, clickhouse.PermanentError) or cause == "no certificate"


#: (user, command, settings changed, exit code, the expected part of the one line). PASSWORD: of another user.
COMMANDS = {
    "topics, wrong password": ("operator", ["topics", "apply"], "PASSWORD", 1, "rejects user operator"),
    "replay, wrong password": ("producer", ["replay", "JOB"], "PASSWORD", 1, "rejects user producer"),
    "stream, wrong password": ("worker", ["stream"], "PASSWORD", 7, "rejects user worker"),
    "sink, wrong password": ("sink", ["sink"], "PASSWORD", 7, "rejects user sink"),
    "audit, wrong password": ("auditor", ["audit"], "PASSWORD", 10, "rejects user auditor"),
    "topics, no ACL": (
        "auditor",
        ["topics", "apply"],
        "",
        1,
        "user auditor lacks ACLs: Describe, DescribeConfigs on topic drumline",
    ),
    "replay, no ACL": ("worker", ["replay", "JOB"], "", 1, "user worker lacks ACLs: Write on topic gpu.check.v1"),
    "stream, no ACL": ("sink", ["stream"], "", 7, "Read on group drumline-streams"),
    "exporter, no ACL": ("sink", ["exporter"], "", 7, "Read on group drumline-exporter"),
    "sink, no ACL for dead letters": ("auditor", ["sink"], "", 7, "Write on topic gpu.check.v1.dlq"),
    "dlq, wrong password": ("operator", ["dlq", "list"], "PASSWORD", 1, "rejects user operator"),
    "dlq, no ACL": ("producer", ["dlq", "list"], "", 1, "user producer lacks ACLs"),
    "audit, no ACL": ("sink", ["audit"], "GROUP", 10, "Describe on group other"),
    "tail, no ACL": ("producer", ["topics", "tail", "gpu.lateness.v1"], "", 1, "Read on topic gpu.lateness.v1"),
    "policy, no ACL": (
        "producer",
        ["policy", "set", "always", "--yes"],
        "",
        1,
        "denies user producer: Write on topic drumline.control.v1",
    ),
    "migrate, no grant": ("reader", ["migrate"], "", 1, "Not enough privileges"),
    "sql, no grant": ("reader", ["sql", "SELECT * FROM system.users"], "", 1, "grant SELECT ON system.users"),
}


@pytest.fixture(scope="module")
def answers(secure, drumline, programs, job):
    """Return the output of every command of COMMANDS: they run three at a time."""
    changes = {
        "": {},
        "PASSWORD": {"KAFKA__SASL_PASSWORD_FILE": secure.password_file("nobody")},
        "GROUP": {"SINK__GROUP": "other"},
    }

    def answer(case):
        user, command, change, *_ = COMMANDS[case]
        return drumline(user, *[str(job) if argument == "JOB" else argument for argument in command], **changes[change])

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(COMMANDS, pool.map(answer, COMMANDS), strict=True))


@pytest.mark.parametrize("case", COMMANDS)
def test_every_program_reports_in_one_line_what_is_missing(secure, answers, case):
    code, out, errors = answers[case]
    *_, wanted, output = COMMANDS[case]
    lines = [line for line in errors.splitlines() if line.startswith("drumline ")]
    assert (code, len(lines)) == (wanted, 1), errors
    assert output in lines[0]
    assert "Traceback" not in errors
    assert not any(password in out + errors for password in secure.passwords.values())


def deny(secure, user, operation, kind, name):
    rule = AclBinding(
        ResourceType[kind], name, ResourcePatternType.LITERAL, f"User:{user}", "*",
        AclOperation[operation], AclPermissionType.DENY,
    )  # fmt: skip
    admin = secure.admin()
    for future in admin.create_acls([rule]).values():
        future.result(20)


def test_an_acl_that_is_taken_away_ends_the_programs_in_a_few_lines(secure, drumline, programs):
    before = {name: len(program.log.read_text().splitlines()) for name, program in programs.items()}
    pids = {name: psutil.Process(program.pid) for name, program in programs.items()}
    deny(secure, "worker", "WRITE", "TOPIC", "drumline.tick.v1")
    deny(secure, "sink", "READ", "TOPIC", "gpu.kernel.v1")
    psutil.wait_procs(list(pids.values()), timeout=60)
    for name, output in (("stream", "drumline.tick.v1"), ("sink", "Read on topic gpu.kernel.v1")):
        assert not pids[name].is_running() or pids[name].status() == psutil.STATUS_ZOMBIE
        lines = programs[name].log.read_text().splitlines()[before[name] :]
        assert output in "".join(lines)
        assert len(lines) < 30
        assert "Traceback" not in "".join(lines), "\n".join(lines)[-5_000:]
    producer = Producer(client_config(secure.settings_of("producer"), "test"))
    producer.produce(Topic.MEMCPY, POISON, "key")
    assert producer.flush(20) == 0
    auditor = {"CLICKHOUSE__USER": "auditor", "CLICKHOUSE__PASSWORD_FILE": secure.password_file("auditor")}
    code, _, errors = drumline("sink", "sink", "--topic", Topic.MEMCPY, **auditor)
    assert code == 5, errors
    assert "necessary to have the grant INSERT" in errors.splitlines()[-1]
