"""Acknowledgements of findings that can never be fixed: by a person, with a reason, kept in ClickHouse."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.sinks.audit.report import NOT_YET, Acknowledged, AuditReport, Finding

_STORE = (
    "INSERT INTO {database}.acknowledgements_versions (id, kind, place, text, reason, decided_by, time, withdrawn) "
    "SELECT {{id:String}}, {{kind:String}}, {{place:String}}, {{text:String}}, {{reason:String}}, "
    "{{by:String}}, now64(6), {{withdrawn:UInt8}}"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Holds what a person decides about findings, by their ids. `decided_by`: user and host."""

    acknowledged: Collection[str] = ()
    withdrawn: Collection[str] = ()
    reason: str = ""
    decided_by: str = ""


class NotAcknowledgeable(ValueError):
    """A finding that may still pass, as records that wait to be stored."""


class Acknowledgements:
    """Reads and writes the acknowledgements of one database. Raises TransientError, PermanentError."""

    def __init__(self, client: Client, database: str) -> None:
        self._client, self._database = client, database

    def decide(self, report: AuditReport, decision: Decision) -> set[str]:
        """Keep a decision, where it changes anything; return the ids that nothing is known of here.

        Raises NotAcknowledgeable, before anything is kept.
        """
        kept, findings = self._kept(), {finding.id: finding for finding in report.findings}
        for identity in decision.acknowledged:
            if identity in findings and findings[identity].kind in NOT_YET:
                raise NotAcknowledgeable(
                    f"{identity} ({findings[identity].kind}) may still pass: it is not acknowledged"
                )
        unknown = {*decision.acknowledged, *decision.withdrawn} - kept.keys() - findings.keys()
        for identity in set(decision.acknowledged) - unknown:
            before = kept.get(identity)
            if before is None or before.withdrawn or before.reason != decision.reason:
                finding = findings[identity] if identity in findings else kept[identity].finding
                self._store(finding, decision, withdrawn=False)
        for identity in set(decision.withdrawn) - unknown:
            before = kept.get(identity)
            if before is not None and not before.withdrawn:
                self._store(before.finding, decision, withdrawn=True)
        return unknown

    def apply(self, report: AuditReport) -> None:
        """Move the findings that are acknowledged out of those that count."""
        kept = self._kept()
        report.acknowledged = [
            kept[finding.id]
            for finding in report.findings
            if finding.id in kept and not kept[finding.id].withdrawn and finding.kind not in NOT_YET
        ]
        done = {acknowledged.finding.id for acknowledged in report.acknowledged}
        report.findings = [finding for finding in report.findings if finding.id not in done]

    def _kept(self) -> dict[str, Acknowledged]:
        kept = rows(self._client, f"SELECT * FROM {self._database}.acknowledgements")
        return {str(row["id"]): _acknowledged(row) for row in kept}

    def _store(self, finding: Finding, decision: Decision, *, withdrawn: bool) -> None:
        values = {
            "id": finding.id, "kind": finding.kind, "place": finding.where, "text": finding.text,
            "reason": decision.reason, "by": decision.decided_by, "withdrawn": int(withdrawn),
        }  # fmt: skip
        command(self._client, _STORE.format(database=self._database), values)


def _acknowledged(row: dict[str, object]) -> Acknowledged:
    time = row["time"]
    return Acknowledged(
        Finding(str(row["kind"]), str(row["place"]), str(row["text"])), str(row["reason"]), str(row["decided_by"]),
        time.isoformat(timespec="seconds") if isinstance(time, datetime) else str(time), bool(row["withdrawn"]),
    )  # fmt: skip
