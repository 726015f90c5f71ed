"""Define what an audit reports: findings, and what became of the records of each topic."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

#: Kinds of findings that may pass by themselves, so that nothing is to be acknowledged.
NOT_YET = frozenset({"not_drained", "windows_open", "unknown"})


@dataclass(frozen=True, slots=True)
class Finding:
    """States one fault that the audit found.

    `kind`: lost, doubled, conflict, rows_differ, tail_lost, sequence_gap, windows_differ, rollup_differs, not_drained,
    windows_open, unknown. The last three mean "not yet" or "not in this ledger", the others "wrong". `where`: topic,
    partition, table or process.
    """

    kind: str
    where: str
    text: str

    @property
    def id(self) -> str:
        """Return the name by which it is acknowledged: a finding that grows has another."""
        return hashlib.sha256("\0".join((self.kind, self.where, self.text)).encode()).hexdigest()[:12]

    def as_json(self) -> dict[str, str]:
        """Return it for JSON."""
        return {"id": self.id, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A finding that a person has acknowledged, or had. `time`: ISO 8601."""

    finding: Finding
    reason: str
    decided_by: str
    time: str
    withdrawn: bool = False

    def as_json(self) -> dict[str, str]:
        """Return it for JSON."""
        return {**self.finding.as_json(), "reason": self.reason, "decided_by": self.decided_by, "time": self.time}


@dataclass(slots=True)
class TopicAccount:
    """Counts the records of one topic by disposition, over all incarnations in the ledger.

    `rows_published`: as the ledger has them; `rows_stored`: as the table has them; `rows_expired`: older than
    retention, so in neither, whether they came so (records `expired`) or became so.
    """

    topic: str
    records: int = 0
    stored: int = 0
    empty: int = 0
    duplicate: int = 0
    fenced: int = 0
    expired: int = 0
    forgotten: int = 0
    dead: int = 0  # glossary: key of the JSON report
    waiting: int = 0
    rows_published: int = 0
    rows_stored: int = 0
    rows_expired: int = 0


@dataclass(slots=True)
class AuditReport:
    """Holds the result of `drumline audit`.

    `rollups`: rollup -> the rows that it counts. `dropped`: rows lost before publication, per topic and run.
    `kept`: rows that stay on their hosts, and those of them that are counted in windows, per process.
    `acknowledged`: findings that do not count any more.
    """

    topics: list[TopicAccount] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)
    rollups: dict[str, int] = field(default_factory=dict)  # rows that they count
    acknowledged: list[Acknowledged] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Return True if there are no findings."""
        return not self.findings

    @property
    def rows_expired(self) -> int:
        """Return the rows of all topics that are older than retention."""
        return sum(account.rows_expired for account in self.topics)

    def as_json(self) -> dict[str, Any]:
        """Return the report as `drumline audit --json` prints it."""
        return {
            "clean": self.clean,
            "rows_expired": self.rows_expired,
            "findings": [finding.as_json() for finding in self.findings],
            "acknowledged": [acknowledged.as_json() for acknowledged in self.acknowledged],
            "topics": [asdict(account) for account in self.topics],
            "dropped_before_publication": self.dropped,
            "windows": self.windows,
            "kept": self.kept,
            "rollups": self.rollups,
        }
