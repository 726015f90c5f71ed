"""Tenants and keys in settings: mistakes name the setting and the place, never a key."""

import json

import pytest

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.tenants import read_tenants
from drumline.infra.kafka.registry import codec
from drumline.infra.kafka.signing import signer
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.schemas.batch import Batch
from drumline.schemas.errors import Unsigned

KEY = "0123456789abcdef" * 4


@pytest.fixture
def tenants(tmp_path):
    def write(content):
        path = tmp_path / "tenants.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_what_a_producer_signs_a_reader_accepts(tenants, tmp_path):
    (tmp_path / "key").write_text(KEY + "\n")
    producer = KafkaSettings(tenant="team-a", tenant_key_file=tmp_path / "key")
    file = tenants({"team-a": {"keys": ["ff" * 32, KEY.upper()], "jobs": ["a/*"], "hosts": ["*"]}})
    settings = ephemeral_settings(tmp_path / "state")
    reader = codec(settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"tenants_file": file})}))
    value = reader.encode(Batch("gpu.kernel.v1", {"rows": 0, "job": "a/train"}))
    headers = signer(producer)("gpu.kernel.v1", b"p", value)["headers"]
    assert reader.decode("gpu.kernel.v1", value, key=b"p", headers=headers).envelope["job"] == "a/train"
    assert signer(KafkaSettings())("gpu.kernel.v1", b"p", value) == {}
    with pytest.raises(Unsigned):
        reader.decode("gpu.kernel.v1", value, key=b"p", headers=[])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([], "dictionary"),
        ({"a": {"keys": [KEY]}}, r"a\.jobs: Field required"),
        ({"a": {"keys": [KEY], "jobs": ["*"]}}, r"a\.hosts: Field required"),
        ({"a": {"keys": [], "jobs": ["*"]}}, r"a\.keys: List should have at least 1"),
        ({"a": {"keys": [KEY[:-2]], "jobs": ["*"]}}, r"a\.keys\.0: String should match"),
        ({"a": {"keys": [KEY], "jobs": ["*"], "hosts": ["*"], "job": "x"}}, r"a\.job: Extra inputs"),
    ],
)
def test_mistakes_in_the_file_name_their_place_and_no_key(tenants, content, message):
    with pytest.raises(ValueError, match=message) as error:
        read_tenants(tenants(content))
    assert "DRUMLINE_KAFKA__TENANTS_FILE" in str(error.value)
    assert KEY[:-2] not in str(error.value)


@pytest.mark.parametrize(
    "values", [{"tenant": "a"}, {"tenant_key": KEY}, {"tenant": "a", "tenant_key": KEY[:60]}, {"tenants_file": "/no"}]
)
def test_half_a_signature_is_rejected_at_the_start(values):
    with pytest.raises(ValueError, match="DRUMLINE_KAFKA__TENANT") as error:
        KafkaSettings(**values)
    assert KEY[:60] not in str(error.value)
