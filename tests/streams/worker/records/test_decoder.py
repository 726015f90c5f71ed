"""The registry is away: records of known schemas go on, others wait, none becomes a dead letter."""

import asyncio

import numpy as np
import pytest

from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, Received
from drumline.schemas.confluent import schema_id
from drumline.schemas.errors import RegistryRejected, RegistryUnavailable, UnknownSchema, Unsigned
from drumline.schemas.registry import LockFileRegistry
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic
from drumline.streams.worker.records.decoder import RecordDecoder

TOPIC = "gpu.memcpy.v1"


class Registry(LockFileRegistry):
    """`away`: how often it does not answer; then `gone` ids turn out to be unknown."""

    def __init__(self, away):
        super().__init__()
        self.away, self.requested, self.unknown, self.error = away, set(), False, RegistryUnavailable

    def in_memory(self, schema_id):
        return schema_id in self.requested

    def model_of(self, schema_id):
        if schema_id not in self.requested:
            if self.away:
                self.away -= 1
                raise self.error("no answer")
            if self.unknown:
                raise UnknownSchema("no such id")
            self.requested.add(schema_id)
        return super().model_of(schema_id)


VALUE = Codec().encode(Batch(TOPIC, {"rows": 1}, {"bytes": np.array([9])}))


async def decode(decoder, value=VALUE, key=None, headers=None):
    """Read a record that is a batch."""
    record = await decoder.open(TOPIC, Received(value, 0, key, headers))
    return (await decoder.read(TOPIC, [record])).batch(0)


def setup(away, leaving=lambda: False):
    waited, health = [], Health()
    health.set_reason("start", "")

    async def sleep(seconds):
        waited.append((seconds, health.ready()))

    registry = Registry(away)
    return RecordDecoder(Codec(registry), health, leaving, sleep), registry, waited, health


def test_a_record_of_a_new_schema_waits_and_is_decoded_when_the_registry_is_back():
    decoder, registry, waited, health = setup(away=5)
    assert asyncio.run(decode(decoder)).columns["bytes"].tolist() == [9]
    assert len(waited) == 5
    assert all("registry" in reasons for _, reasons in waited)
    assert "registry" not in health.ready()
    registry.away = 9
    asyncio.run(decode(decoder))
    assert registry.away == 9, "a known schema needs no registry"


def test_an_id_that_the_registry_does_not_have_is_bad_only_when_the_registry_answers_so():
    decoder, registry, waited, health = setup(away=2)
    registry.unknown = True
    with pytest.raises(UnknownSchema):
        asyncio.run(decode(decoder))
    assert len(waited) == 2
    assert "registry" not in health.ready()


def test_no_record_waits_for_it_when_partitions_move():
    decoder, _, waited, _ = setup(away=9, leaving=lambda: len(waited) == 3)
    with pytest.raises(RegistryUnavailable):
        asyncio.run(decode(decoder))
    assert len(waited) == 3


def test_a_registry_that_refuses_is_not_asked_again():
    decoder, registry, waited, _ = setup(away=9)
    registry.error = RegistryRejected
    with pytest.raises(RegistryRejected):
        asyncio.run(decode(decoder))
    assert waited == []


@pytest.mark.parametrize("away", [0, 2])
def test_a_record_that_its_jobs_tenant_has_not_signed_is_a_bad_record(away):
    guard, secret = TenantGuard({"a": Tenant((b"k" * 32,), ("a/*",), ("*",))}), b"k" * 32
    value = Codec().encode(Batch(TOPIC, {"rows": 0, "job": "a/train"}))

    async def no_sleep(_):
        pass

    async def signed(headers):
        decoder = RecordDecoder(Codec(Registry(away), guard), Health(), lambda: False, sleep=no_sleep)
        return await decode(decoder, value, b"p", headers)

    assert asyncio.run(signed(signed_headers("a", secret, TOPIC, b"p", value))).envelope["job"] == "a/train"
    for headers in (None, [], signed_headers("a", b"x" * 32, TOPIC, b"p", value)):
        with pytest.raises(Unsigned):
            asyncio.run(signed(headers))


def test_parts_of_a_new_schema_wait_too():
    """The schema of the record is known, that of its parts is not."""
    registry = Registry(away=3)
    known = Codec()
    value = known.encode(Batch(Topic.STEP, {"rows": 0, "job": "job"}))
    record = known.merge(Topic.STEP, [value, value])
    registry.requested.add(schema_id(record, Topic.STEP))
    waited, health = [], Health()

    async def sleep(seconds):
        waited.append(seconds)

    async def read():
        decoder = RecordDecoder(Codec(registry), health, lambda: False, sleep)
        opened = await decoder.open(Topic.STEP, Received(record))
        return await decoder.read(Topic.STEP, [opened])

    table = asyncio.run(read())
    assert (table.parts, table.sizes, len(waited)) == (2, [2], 3)
