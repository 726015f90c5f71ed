"""What can be wrong with a Kafka record, as types. Messages name topic and field, never the payload."""

from __future__ import annotations

from typing import ClassVar


class BadRecord(ValueError):
    """A Kafka record that can never be read: a dead letter.

    `reason`: stable short code of the class, fit for a metric label or the header `error.code`.
    `detail`: the sentence; `topic` where known; `field`: the Avro field at fault, or "".
    """

    reason: ClassVar[str] = "bad_record"

    def __init__(self, detail: str, *, topic: str = "", field: str = "") -> None:
        self.detail = detail
        self.topic = topic
        self.field = field
        where = f"{topic or 'record'}{'.' + field if field else ''}"
        super().__init__(f"{where}: {detail}")


class BadFrame(BadRecord):
    """Not Confluent wire format: no value, too short, absurdly long, or another magic byte."""

    reason = "bad_frame"


class UnknownSchema(BadRecord):
    """The frame names a schema id that the registry does not know."""

    reason = "unknown_schema"


class WrongSchema(BadRecord):
    """The schema id is known, but is another topic's, or cannot be read as this topic's."""

    reason = "wrong_schema"


class BadEnvelope(BadRecord):
    """The Avro body does not decode with the schema it names, or an envelope value is impossible."""

    reason = "bad_envelope"


class BadColumn(BadRecord):
    """A packed column is truncated, too long, or refers outside its dictionary."""

    reason = "bad_column"


#: Every value of BadRecord.reason.
REASONS = tuple(kind.reason for kind in (BadFrame, UnknownSchema, WrongSchema, BadEnvelope, BadColumn))


class Unencodable(ValueError):
    """A batch that would not come back as it went in: a mistake of the caller, never a dead letter."""

    def __init__(self, detail: str, *, topic: str, field: str = "") -> None:
        self.detail = detail
        self.topic = topic
        self.field = field
        super().__init__(f"{topic}{'.' + field if field else ''}: {detail}")


class BadSchema(ValueError):
    """An .avsc that breaks the rules of docs/reference/record-format.md, or is not in the lock file."""


class RegistryUnavailable(ConnectionError):
    """The schema registry does not answer. Not a BadRecord: the record may be good, so stop or retry, never bury it."""


class RegistryRejected(RegistryUnavailable):
    """Certificate, user or password: the schema registry would say the same next time, so nobody waits for it."""
