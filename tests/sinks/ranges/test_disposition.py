"""A record and its disposition in the sink."""

import pytest
from support.tables import read_one

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.limits import MAX_KEY_BYTES
from drumline.schemas.codec import Codec
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import Disposition, Record
from drumline.sinks.tables.tables import table

TOPIC, SECRET = Topic.STEP, b"k" * 32


def test_a_record_that_its_jobs_tenant_has_not_signed_is_a_dead_letter_with_the_reason():
    codec = Codec(guard=TenantGuard({"a": Tenant((SECRET,), ("a/*",), ("*",))}))
    for job, tenant, error in (("a/train", "a", ""), ("b/train", "a", "ForeignJob"), ("a/train", "b", "Unsigned")):
        value = codec.encode(Batch(TOPIC, {"rows": 0, "job": job}))
        signed = signed_headers(tenant, SECRET, TOPIC, b"p", value)

        def entry(headers, value=value, **more):
            return read_one(Record(TOPIC, 0, 7, b"p", value, 1_000, headers), table(TOPIC), codec, **more)

        assert entry(signed).error[0] == error
        assert entry(signed).disposition is (Disposition.DEAD_LETTER if error else Disposition.EMPTY)
        assert entry([]).error[0] == "Unsigned"
        assert entry([], bounded=False).disposition is Disposition.EMPTY, "an intent counts it as stored"


@pytest.mark.parametrize("topic", [Topic.STEP, Topic.STRAGGLER])
def test_key_and_headers_are_bounded_and_counted(topic):
    value = Codec().encode(Batch(topic, {"rows": 0}))
    values = [value] if topic is Topic.STEP else [value, None]
    for key, headers, part in (
        (b"k" * MAX_KEY_BYTES, [("h", b"v" * 16_383)], ""),
        (b"k" * (MAX_KEY_BYTES + 1), [], "key of 8197 bytes, at most 8196"),
        (b"k", [("h" * 9_000, b"v"), ("h", b"v" * 9_000), ("h", None)], "headers of 18003 bytes, at most 16384"),
    ):
        for content in values:
            record = Record(topic, 0, 7, key, content, 1_000, list(headers))
            entry = read_one(record, table(topic))
            assert entry.size == len(key) + len(content or b"") + sum(len(n) + len(v or b"") for n, v in headers)
            assert entry.disposition is (Disposition.DEAD_LETTER if part else Disposition.EMPTY)
            assert entry.error == (("OutOfBounds", f"{topic}: {part}") if part else ("", ""))
            assert record.headers == (headers if part else []), "only dead letters keep them"
            assert len(record.key_text) <= MAX_KEY_BYTES, "in the ledger"
