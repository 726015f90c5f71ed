"""Records of drumline.control.v1: which processes are to be recorded how, until when, and which kept rows are wanted.

A record is Avro's single-object encoding (Avro 1.12, "Single-object encoding"): it names its schema by fingerprint, and
needs no registry. Not a batch: it is about no process, and no sink stores it. People write it, agents follow it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from drumline.schemas.topics import Topic

#: Bytes before a body: Avro's marker, then CRC-64-AVRO of the schema.
_MARKER = b"\xc3\x01"
#: Most bytes of a record, ranks that it names, and characters of a name.
MAX_BYTES, MAX_RANKS, MAX_NAME = 1 << 16, 4_096, 1_024
MAX_RANK = (1 << 20) - 1
#: Longest time that a policy and a deep window are in force; ns. All expire by themselves.
DAY_NS = 86_400_000_000_000
MAX_POLICY_NS, MAX_WINDOW_NS = 7 * DAY_NS, 600_000_000_000
#: Most steps of a pull, and longest time for which it is followed; ns.
MAX_PULL_STEPS, MAX_PULL_NS = 200, 600_000_000_000
POLICY, WINDOW, PULL = "policy", "window", "pull"
#: All steps of a job, where NCCL measures a part of them (producers/nccl_profiler/timed_steps.c).
TIMES = "times"
#: Odds from which a rank is suspect, and the evidence of the cause that it would be named for; tests hold both equal to
#: the stream processor's.
SUSPECTED, SUSPECTED_OF = 3.0, "suspected_of"

_SCHEMA: dict[str, Any] = {
    "type": "record", "name": "Control", "namespace": "drumline.v1",
    "doc": "Which processes are to be recorded how, until when; compacted, the newest of a key counts.",
    "fields": [
        {"name": "key", "type": "string", "doc": "the record's key: its name"},
        {"name": "kind", "type": "string", "doc": "policy, or window: a deep window, which comes before policies"},
        {"name": "policy", "type": "string", "doc": "as of drumline run --policy"},
        {"name": "job", "type": "string", "doc": "jobs, a pattern as in shells"},
        {"name": "run", "type": "string", "doc": "a run of them; empty = all"},
        {"name": "host", "type": "string", "doc": "hosts, a pattern as in shells"},
        {"name": "ranks", "type": {"type": "array", "items": "int"}, "doc": "ranks; empty = all"},
        {"name": "first_step", "type": "long", "doc": "first step that is wanted; -1 = none is named"},
        {"name": "last_step", "type": "long", "doc": "last step that is wanted; -1 = none is named"},
        {"name": "start_ns", "type": "long", "doc": "in force from this time on; ns since the epoch"},
        {"name": "until_ns", "type": "long", "doc": "in force until this time; ns since the epoch"},
        {"name": "stacks", "type": "boolean", "doc": "sample Python stacks too"},
        {"name": "launches", "type": "boolean", "doc": "record launches too"},
        {"name": "pc", "type": "boolean", "doc": "sample what the warps of the GPU wait for, too"},
        {"name": "requested_by", "type": "string", "doc": "the user of the machine that asked"},
        {"name": "requested_ns", "type": "long", "doc": "when it was asked; ns since the epoch"},
        {"name": "cleared", "type": "boolean", "doc": "true = not in force any more"},
    ],
}  # fmt: skip
_PARSED = fastavro.parse_schema(_SCHEMA, named_schemas={})


_HEADER = _MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(_SCHEMA), "CRC-64-AVRO"))


class BadControl(ValueError):
    """A record that is none, or that asks for something impossible; the message states what."""


@dataclass(frozen=True, slots=True)
class Control:
    """Holds the request of one record; fields as in its schema."""

    key: str
    kind: str
    policy: str
    job: str = "*"
    run: str = ""
    host: str = "*"
    ranks: tuple[int, ...] = ()
    first_step: int = -1
    last_step: int = -1
    start_ns: int = 0
    until_ns: int = 0
    stacks: bool = False
    launches: bool = False
    pc: bool = False
    requested_by: str = ""
    requested_ns: int = 0
    cleared: bool = False

    def checked(self) -> Control:
        """Return the same. Raises BadControl for what is impossible."""
        longest = {POLICY: MAX_POLICY_NS, PULL: MAX_PULL_NS}.get(self.kind, MAX_WINDOW_NS)
        texts = (self.key, self.policy, self.job, self.run, self.host, self.requested_by)
        if self.kind not in (POLICY, WINDOW, PULL, TIMES):
            raise BadControl(f"{self.kind!r} is neither a policy nor a window nor a pull")
        if not (self.key and self.job and self.host) or any(len(text) > MAX_NAME for text in texts):
            raise BadControl(f"a name is empty, or longer than {MAX_NAME} characters")
        if len(self.ranks) > MAX_RANKS or any(not 0 <= rank <= MAX_RANK for rank in self.ranks):
            raise BadControl(f"ranks are 0 to {MAX_RANK:,}, at most {MAX_RANKS:,} of them")
        if not -1 <= self.first_step <= self.last_step:
            raise BadControl(f"steps {self.first_step} to {self.last_step} are none")
        if self.kind == PULL and not 0 <= self.last_step < self.first_step + MAX_PULL_STEPS:
            raise BadControl(f"a pull names steps, {MAX_PULL_STEPS} at most")
        if not 0 <= self.start_ns <= self.until_ns < 1 << 63:
            raise BadControl("it ends before it begins")
        if self.until_ns - self.start_ns > longest:
            raise BadControl(f"a {self.kind} is in force for {longest / 1e9:,.0f} s at most")
        return self


def exact(name: str) -> str:
    """Return the pattern that only this name matches."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def encode(control: Control) -> bytes:
    """Return the Kafka value of a record. Raises BadControl."""
    out = BytesIO()
    fastavro.schemaless_writer(out, _PARSED, {**asdict(control.checked()), "ranks": list(control.ranks)})
    value = _HEADER + out.getvalue()
    if len(value) > MAX_BYTES:
        raise BadControl(f"it has more than {MAX_BYTES:,} bytes")
    return value


def decode(value: bytes | None) -> Control:
    """Return what a Kafka value asks for. Raises only BadControl, whatever the bytes are."""
    if value is None or len(value) > MAX_BYTES or not value.startswith(_HEADER):
        raise BadControl(f"no record of {Topic.CONTROL} that this version reads")
    body = BytesIO(value[len(_HEADER) :])
    try:
        record: Any = fastavro.schemaless_reader(body, _PARSED, None)
        control = Control(**{**record, "ranks": tuple(record["ranks"])})
    except Exception as error:  # fastavro raises many kinds
        raise BadControl(f"its Avro cannot be read ({type(error).__name__})") from None
    if body.read(1):
        raise BadControl("bytes follow its Avro record")
    return control.checked()


def healthy_peer(healthy: Iterable[tuple[int, str]], host: str, group: Collection[int] = ()) -> int:
    """Return the lowest of healthy ranks, each with its host; -1 = none.

    One of `group` is preferred, of which one of the late rank's host. `group`: see `compared_ranks`.
    """
    ranked = ((bool(group) and rank not in group, place != host, rank) for rank, place in healthy if rank >= 0)
    return min(ranked, default=(False, False, -1))[2]


def with_peer(late: int, host: str, healthy: Iterable[tuple[int, str]], group: Collection[int] = ()) -> list[int]:
    """Return the ranks that a deep window about a late rank records: it, and its healthy peer if there is one."""
    return sorted({late, healthy_peer(healthy, host, group)} - {-1})


def compared_ranks(evidence: str) -> frozenset[int]:
    """Return ranks that a late one was compared with, those of its communicator; none where it was with all of its job.

    `evidence`: of its verdict, JSON. They are some, where the communicator is large.
    """
    try:
        peers = json.loads(evidence)["peers"]
        return frozenset(rank for rank in peers if isinstance(rank, int))
    except (KeyError, TypeError, ValueError, RecursionError):
        return frozenset()


def suspect_ranks(ranks: Iterable[int], severities: Iterable[int], evidence: Iterable[str]) -> list[int]:
    """Return the ranks of a record of verdicts that are named, or may be soon. `evidence`: of each, JSON."""
    return [
        rank
        for rank, severity, text in zip(ranks, severities, evidence, strict=True)
        if rank >= 0 and (severity > 0 or (severity == 0 and odds_of(text) >= SUSPECTED))
    ]


def odds_of(evidence: str, causes: Collection[str] | None = None) -> float:
    """Return the odds that a late rank is late for a reason, 0 where evidence has none.

    `causes`: those that a rank is suspected of which counts, None = all late ranks count.
    """
    try:
        values = json.loads(evidence) if '"odds"' in evidence else {"odds": 0.0}
        return float(values["odds"]) if causes is None or values[SUSPECTED_OF] in causes else 0.0
    except (KeyError, TypeError, ValueError, RecursionError):
        return 0.0
