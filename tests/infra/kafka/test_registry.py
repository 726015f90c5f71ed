"""Ids from a Confluent-compatible registry, against a small HTTP server with its REST API (a fake)."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.fakes.registry import FakeRegistry

from drumline.cli import app as cli
from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.registry import UNKNOWN_IDS, UNKNOWN_S, codec, connect, subject
from drumline.schemas.batch import Batch, encode
from drumline.schemas.confluent import header
from drumline.schemas.errors import BadSchema, RegistryRejected, RegistryUnavailable, UnknownSchema, WrongSchema
from drumline.schemas.model import model, parse_model
from drumline.schemas.registry import lock_file_registry
from drumline.schemas.topics import Topic
from drumline.sinks.intake import Intake
from drumline.sinks.ranges.disposition import Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

TOPIC = "gpu.memcpy.v1"


@pytest.fixture
def fake():
    registry = FakeRegistry()
    yield registry
    registry.go()


def codec_of(fake, writes=(), **kafka):
    return codec(Settings(kafka=KafkaSettings(registry_url=fake.url, **kafka)), writes)


def test_schemas_are_registered_once_and_records_need_no_call_after_that(fake):
    coder = codec_of(fake, [TOPIC])
    for _ in range(3):
        value = coder.encode(Batch(TOPIC, {"rows": 1}, {"bytes": np.array([9])}))
        assert coder.decode(TOPIC, value).columns["bytes"].tolist() == [9]
    assert value[:5] == header(100)
    assert [call[:2] for call in fake.calls] == [("POST", subject(TOPIC))]


def test_another_process_reads_the_same_ids_and_asks_for_an_id_once(fake):
    value = codec_of(fake).encode(Batch(TOPIC, {"rows": 0}))
    fake.calls.clear()
    reader = codec_of(fake)
    for _ in range(3):
        assert reader.decode(TOPIC, value).rows == 0
    assert [call[:2] for call in fake.calls] == [("GET", 100)]


def test_an_older_version_from_the_registry_is_read(fake):
    schema = json.loads(model(TOPIC).text)
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "is_async"]
    fake.schemas[7] = (subject(TOPIC), json.dumps(schema))
    old = parse_model(TOPIC, json.dumps(schema))
    batch = codec_of(fake).decode(TOPIC, encode(old, Batch(TOPIC, {"rows": 2}), header(7)))
    assert batch.columns["is_async"].tolist() == [0, 0]


def test_an_unknown_id_is_asked_for_once_until_it_may_have_come(fake):
    clock = [0.0]
    registry = connect(Settings(kafka=KafkaSettings(registry_url=fake.url)))
    registry._clock = lambda: clock[0]
    for _ in range(3):
        with pytest.raises(UnknownSchema):
            registry.model_of(5)
    assert len(fake.calls) == 1
    fake.schemas[5] = (subject(TOPIC), model(TOPIC).text)
    clock[0] = UNKNOWN_S + 1
    assert registry.model_of(5) is model(TOPIC)


def test_remembered_unknown_ids_are_bounded(fake):
    registry = connect(Settings(kafka=KafkaSettings(registry_url=fake.url)))
    registry._unknown = dict.fromkeys(range(10_000, 10_000 + UNKNOWN_IDS), 1e12)
    with pytest.raises(UnknownSchema):
        registry.model_of(5)
    assert len(registry._unknown) == UNKNOWN_IDS


def test_foreign_schemas_are_bad_records(fake):
    spoiled = json.loads(model(TOPIC).text)
    spoiled["fields"][-1]["type"]["dtype"] = "<u8"
    fake.schemas |= {1: ("x", '"string"'), 2: ("y", json.dumps(spoiled)), 3: ("z", model("gpu.step.v1").text)}
    coder = codec_of(fake)
    for number, kind in ((1, UnknownSchema), (2, WrongSchema), (3, WrongSchema)):
        with pytest.raises(kind) as bad:
            coder.decode(TOPIC, header(number))
        assert bad.value.topic == TOPIC


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_refuses_to_answer_is_no_verdict_on_the_record(fake, status):
    fake.status = status
    with pytest.raises(RegistryRejected, match=f"HTTP {status}.; check DRUMLINE_KAFKA__REGISTRY_USER"):
        codec_of(fake).decode(TOPIC, header(5))


def test_a_sink_does_not_wait_for_a_registry_that_refuses(fake):
    fake.status = 401
    settings = Settings(kafka=KafkaSettings(registry_url=fake.url))
    kafka = SimpleNamespace(states={(TOPIC, 0): PartitionState(table(Topic.MEMCPY), 0, "id", 0, False)})
    intake = Intake(settings.sink, kafka, codec(settings), SinkCounts())
    with pytest.raises(RegistryRejected):
        intake.take(Record(TOPIC, 0, 0, b"k", header(5), -1, []))
    assert len(fake.calls) == 1


def test_a_registry_that_is_not_there_fails_at_start_and_the_message_has_no_password():
    kafka = KafkaSettings(registry_url="http://127.0.0.1:1", registry_user="me", registry_password="hush")
    with pytest.raises(RegistryUnavailable) as raised:
        codec(Settings(kafka=kafka), [TOPIC])
    assert "127.0.0.1:1" in str(raised.value)
    assert "hush" not in str(raised.value)


def test_without_the_right_to_register_the_schema_must_be_there(fake):
    with pytest.raises(BadSchema, match="REGISTRY_REGISTER"):
        codec_of(fake, [TOPIC], registry_register=False)
    fake.schemas[42] = (subject(TOPIC), model(TOPIC).text)
    assert codec_of(fake, registry_register=False).registry.id_of(TOPIC) == 42


def test_a_rejected_schema_names_its_subject(fake):
    fake.status = 409
    with pytest.raises(BadSchema, match=subject(TOPIC)):
        codec_of(fake, [TOPIC])


def test_credentials_are_sent(fake):
    codec_of(fake, [TOPIC], registry_user="me", registry_password="hush")
    assert fake.calls[0][2].startswith("Basic ")


def test_without_a_url_the_lock_file_gives_the_ids():
    assert codec(Settings(kafka=KafkaSettings())).registry.id_of(TOPIC) == lock_file_registry().id_of(TOPIC)


def test_without_the_extra_the_setting_and_the_extra_are_named(fake, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    monkeypatch.setattr(cli, "root", lambda **_: codec_of(fake))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = capsys.readouterr().err
    assert (ended.value.code, len(message.splitlines())) == (2, 1)
    assert "DRUMLINE_KAFKA__REGISTRY_URL needs" in message
    assert "pip install 'drumline[registry]'" in message
