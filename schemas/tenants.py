"""Bind records to tenants: a producer signs with its tenant's key, and readers accept only its jobs and hosts.

Kafka's ACLs say who may write a topic, but no reader learns who wrote a record. Header names and what is signed are
data: records of all versions share them.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from drumline.schemas.dead_letters import Header
from drumline.schemas.errors import ForeignHost, ForeignJob, Unsigned
from drumline.schemas.topics import DERIVED_TOPICS, Topic

#: Without the prefix of drumline's own headers, so that they stay with a record when its dead letter is replayed.
TENANT_HEADER, SIGNATURE_HEADER = "tenant.name", "tenant.signature"
#: Fewest bytes of a key.
KEY_BYTES = 32
#: An agent writes its own process, and samples of links and of a GPU that no job uses, and checks.
_JOBLESS = frozenset({Topic.PROCESS, Topic.DEVICE, Topic.NETWORK, Topic.CHECK})
#: What their rows say of a host may drain it, page its owners, or name it in the verdicts of jobs.
OF_HOSTS = _JOBLESS | {Topic.HOST}


@dataclass(frozen=True, slots=True)
class Tenant:
    """Holds what readers know of a tenant.

    `keys`: each signs, so that one can be replaced. `jobs`, `hosts`: patterns as in shells, `*` for any characters.
    """

    keys: tuple[bytes, ...]
    jobs: tuple[str, ...]
    hosts: tuple[str, ...]

    def check_host(self, topic: str, host: str) -> None:
        """Accept a record about a host, or another one. Fatal for the record: ForeignHost."""
        if topic in OF_HOSTS and not any(fnmatchcase(host, pattern) for pattern in self.hosts):
            raise ForeignHost("the host is none of its tenant's", topic=topic, field="host")


def signature(secret: bytes, topic: str, key: bytes | None, value: bytes) -> bytes:
    """Return the HMAC-SHA256 of a record: of its topic, its key and its value, each but the last behind its length."""
    parts = [part for field in (topic.encode(), key or b"") for part in (len(field).to_bytes(4, "big"), field)]
    digest = hmac.new(secret, b"".join(parts), "sha256")
    digest.update(value)
    return digest.digest()


def signed_headers(tenant: str, secret: bytes, topic: str, key: bytes | None, value: bytes) -> list[Header]:
    """Return the headers of a signed record."""
    return [(TENANT_HEADER, tenant.encode()), (SIGNATURE_HEADER, signature(secret, topic, key, value))]


def is_signed(headers: Iterable[Header] | None) -> bool:
    """Return whether headers hold a signature, which is of a whole record: no part of it is accepted alone."""
    return any(name == SIGNATURE_HEADER for name, _ in headers or ())


class TenantGuard:
    """Accepts records that a tenant signed for a job and a host of its own. Safe to share between threads."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._tenants = dict(tenants)

    def check(self, topic: str, key: bytes | None, value: bytes, headers: Iterable[Header], job: str) -> Tenant | None:
        """Return the tenant of a record, which may be its job's. Fatal for the record: Unsigned, ForeignJob.

        Derived topics need no signature: by Kafka's ACLs, only stream workers may write them. They have no tenant.
        """
        if topic in DERIVED_TOPICS:
            return None
        given = {name: content for name, content in headers if name in (TENANT_HEADER, SIGNATURE_HEADER)}
        name, sent = given.get(TENANT_HEADER), given.get(SIGNATURE_HEADER)
        tenant = self._tenants.get(name.decode("utf-8", "replace")) if isinstance(name, bytes) else None
        if tenant is None or not isinstance(sent, bytes):
            raise Unsigned("no tenant that is known here has signed it", topic=topic)
        if not any(hmac.compare_digest(sent, signature(secret, topic, key, value)) for secret in tenant.keys):
            raise Unsigned("its signature is not that of its tenant's key", topic=topic)
        if (job or topic not in _JOBLESS) and not any(fnmatchcase(job, pattern) for pattern in tenant.jobs):
            raise ForeignJob("the job is none of its tenant's", topic=topic, field="job")
        return tenant
