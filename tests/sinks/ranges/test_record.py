"""A record and its disposition in the sink."""

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.record import Disposition, Record, read
from drumline.sinks.tables.tables import table

TOPIC, SECRET = Topic.STEP, b"k" * 32


def test_a_record_that_its_jobs_tenant_has_not_signed_is_a_dead_letter_with_the_reason():
    codec = Codec(guard=TenantGuard({"a": Tenant((SECRET,), ("a/*",))}))
    for job, tenant, error in (("a/train", "a", ""), ("b/train", "a", "ForeignJob"), ("a/train", "b", "Unsigned")):
        value = codec.encode(Batch(TOPIC, {"rows": 0, "job": job}))
        signed = signed_headers(tenant, SECRET, TOPIC, b"p", value)

        def entry(headers, value=value, **more):
            return read(Record(TOPIC, 0, 7, b"p", value, 1_000, headers), table(TOPIC), codec, **more)

        assert entry(signed).error[0] == error
        assert entry(signed).disposition is (Disposition.DEAD_LETTER if error else Disposition.EMPTY)
        assert entry([]).error[0] == "Unsigned"
        assert entry([], bounded=False).disposition is Disposition.EMPTY, "an intent counts it as stored"
