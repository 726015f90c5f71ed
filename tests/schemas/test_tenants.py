"""Signed records: whoever may write a topic writes rows of its own jobs and hosts only."""

import pytest

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, Received
from drumline.schemas.errors import ForeignHost, ForeignJob, Unsigned
from drumline.schemas.tenants import SIGNATURE_HEADER, TENANT_HEADER, Tenant, TenantGuard, signed_headers

TOPIC, KEY = "gpu.kernel.v1", b"process-1"
OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
TENANTS = {"team-a": Tenant((OLD, NEW), ("a/*", "shared"), ("node-a*", "")),
           "team-b": Tenant((OTHER,), ("b/*",), ("node-b*",))}  # fmt: skip
CODEC = Codec(guard=TenantGuard(TENANTS))


def value(job="a/train", topic=TOPIC):
    return CODEC.encode(Batch(topic, {"rows": 0, "job": job}))


def read(value, headers, topic=TOPIC, key=KEY, **more):
    return CODEC.decode(topic, value, key=key, headers=headers, **more).envelope["job"]


@pytest.mark.parametrize("secret", [OLD, NEW], ids=["old key", "new key"])
@pytest.mark.parametrize("job", ["a/train", "a/", "shared"])
def test_a_record_signed_by_the_tenant_of_its_job_is_read(job, secret):
    assert read(value(job), signed_headers("team-a", secret, TOPIC, KEY, value(job))) == job


@pytest.mark.parametrize("job", ["b/train", "A/train", "shared2", "x a/train", ""])
def test_a_job_of_others_is_rejected_though_the_signature_is_right(job):
    with pytest.raises(ForeignJob, match=r"gpu\.kernel\.v1\.job: the job is none of its tenant's"):
        read(value(job), signed_headers("team-a", OLD, TOPIC, KEY, value(job)))


@pytest.mark.parametrize("topic", ["gpu.process.v1", "gpu.device.v1"])
def test_an_agent_needs_no_job_for_itself_and_for_gpus_without_one(topic):
    agents = value("", topic)
    assert read(agents, signed_headers("team-a", OLD, topic, KEY, agents), topic=topic) == ""


def test_a_signature_holds_for_one_tenant_topic_key_and_value():
    good = signed_headers("team-a", OLD, TOPIC, KEY, value())
    assert read(value(), good) == "a/train"
    device = value(topic="gpu.memcpy.v1")
    for wrong in (
        lambda: read(value("a/other"), good),
        lambda: read(value(), good, key=b"process-2"),
        lambda: read(value(), good, key=None),
        lambda: read(device, signed_headers("team-a", OLD, TOPIC, KEY, device), topic="gpu.memcpy.v1"),
        lambda: read(value("b/x"), signed_headers("team-b", OLD, TOPIC, KEY, value("b/x"))),
        lambda: read(value(), signed_headers("team-c", OLD, TOPIC, KEY, value())),
        lambda: read(value(), [(TENANT_HEADER, b"team-a")]),
        lambda: read(value(), [(TENANT_HEADER, b"team-a"), (SIGNATURE_HEADER, None)]),
        lambda: read(value(), [(TENANT_HEADER, b"\xff"), (SIGNATURE_HEADER, b"")]),
        lambda: read(value(), None),
    ):
        with pytest.raises(Unsigned):
            wrong()


def test_where_one_field_ends_and_the_next_begins_is_signed_too():
    first = signed_headers("team-a", OLD, "t", b"ab", b"c")
    assert first[1] != signed_headers("team-a", OLD, "t", b"a", b"bc")[1]
    assert first[1] != signed_headers("team-a", OLD, "ta", b"b", b"c")[1]


def test_results_and_records_that_were_accepted_before_need_no_signature():
    derived = "gpu.kernel-frequency.v1"
    assert read(value("b/x", derived), None, topic=derived) == "b/x"
    assert read(value("b/x"), None, bounded=False) == "b/x"
    assert Codec().decode(TOPIC, value("b/x")).envelope["job"] == "b/x", "without tenants"


def device(host, topic="gpu.device.v1", job=""):
    return CODEC.encode(Batch(topic, {"rows": 0, "job": job, "host": host}))


JOBLESS = ("gpu.device.v1", "gpu.network.v1", "gpu.check.v1", "gpu.process.v1")


@pytest.mark.parametrize(
    ("topic", "job"), [(topic, job) for topic in JOBLESS for job in ("", "a/train")] + [("gpu.host.v1", "a/train")]
)
def test_what_is_stated_of_a_host_of_others_is_rejected(topic, job):
    of_tenant, other = device("node-a7", topic, job), device("node-b1", topic, job)
    read(of_tenant, signed_headers("team-a", OLD, topic, KEY, of_tenant), topic=topic)
    with pytest.raises(ForeignHost, match=r"\.host: the host is none of its tenant's"):
        read(other, signed_headers("team-a", OLD, topic, KEY, other), topic=topic)
    rows = CODEC.encode(Batch("gpu.kernel.v1", {"rows": 0, "job": "a/train", "host": "node-b1"}))
    assert read(rows, signed_headers("team-a", OLD, TOPIC, KEY, rows)) == "a/train", "no row about a host"


def test_the_host_of_each_part_of_a_record_is_one_of_its_tenants():
    topic = "gpu.device.v1"
    values = [device("node-a1", job="a/x"), device("node-b1", job="a/x")]
    whole = CODEC.merge(topic, values)
    headers = signed_headers("team-a", OLD, topic, KEY, whole)
    record = CODEC.open(topic, Received(whole, 0, KEY, headers))
    with pytest.raises(ForeignHost):
        CODEC.read(topic, [record])
    first, second = CODEC.values(topic, record)
    assert CODEC.decode_part(topic, first, record).envelope["host"] == "node-a1"
    with pytest.raises(ForeignHost):
        CODEC.decode_part(topic, second, record)
