"""Define the errors of Kafka records and of the schema registry. Messages name topic and field, never the payload."""

from __future__ import annotations

from typing import ClassVar


class BadRecord(ValueError):
    """Fatal for the record: it can never be read and becomes a dead letter.

    `reason`: stable short code of the class, for metric labels and JSON output. `detail`: the message; `topic` where
    known; `field`: the Avro field at fault, or "".
    """

    reason: ClassVar[str] = "bad_record"

    def __init__(self, detail: str, *, topic: str = "", field: str = "") -> None:
        self.detail = detail
        self.topic = topic
        self.field = field
        where = f"{topic or 'record'}{'.' + field if field else ''}"
        super().__init__(f"{where}: {detail}")


class BadFrame(BadRecord):
    """The value is not in Confluent wire format: none, too short, far too long, or with another magic byte."""

    reason = "bad_frame"


class UnknownSchema(BadRecord):
    """The frame has a schema id that the registry does not have."""

    reason = "unknown_schema"


class WrongSchema(BadRecord):
    """The schema belongs to another topic, or cannot be read as this topic's."""

    reason = "wrong_schema"


class BadEnvelope(BadRecord):
    """The Avro body does not decode with the schema it names, or an envelope value is impossible."""

    reason = "bad_envelope"


class BadColumn(BadRecord):
    """A packed column is truncated, too long, or refers outside its dictionary."""

    reason = "bad_column"


class OutOfBounds(BadRecord):
    """A field lies outside its bounds (schemas/bounds)."""

    reason = "out_of_bounds"


class Unsigned(BadRecord):
    """No known tenant has signed the record, where records must be signed (tenants.py)."""

    reason = "unsigned"


class ForeignJob(BadRecord):
    """The job of a signed record is none of its tenant's, or that of a batch is not that of its process or run."""

    reason = "foreign_job"


class ForeignHost(BadRecord):
    """The host of a signed record is none of its tenant's."""

    reason = "foreign_host"


#: Every value of BadRecord.reason.
REASONS = tuple(
    kind.reason
    for kind in (
        BadFrame, UnknownSchema, WrongSchema, BadEnvelope, BadColumn, OutOfBounds, Unsigned, ForeignJob,
        ForeignHost,
    )
)  # fmt: skip


class Unencodable(ValueError):
    """Reports a batch that would not decode to the same values: an error of the caller, never a dead letter."""

    def __init__(self, detail: str, *, topic: str, field: str = "") -> None:
        self.detail = detail
        self.topic = topic
        self.field = field
        super().__init__(f"{topic}{'.' + field if field else ''}: {detail}")


class BadSchema(ValueError):
    """Reports an .avsc that breaks the rules of docs/reference/record-format.md, or is not in the lock file."""


class RegistryUnavailable(ConnectionError):
    """Retry later: the schema registry does not answer. The record may be good, so it is no dead letter."""


class RegistryRejected(RegistryUnavailable):
    """Fatal: the schema registry rejects certificate, user or password, so a retry would fail too."""
