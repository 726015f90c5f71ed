"""What can be wrong with a Kafka record, as types. Messages name topic and field, never the payload."""

from __future__ import annotations


class BadRecord(ValueError):
    """A record that cannot be read. `field` is the Avro field at fault, or "" when the frame itself is."""

    def __init__(self, reason: str, *, topic: str = "", field: str = "") -> None:
        self.reason = reason
        self.topic = topic
        self.field = field
        where = f"{topic or 'record'}{'.' + field if field else ''}"
        super().__init__(f"{where}: {reason}")


class UnknownSchema(BadRecord):
    """The frame names a schema id that the registry does not know."""


class BadFrame(BadRecord):
    """Not Confluent wire format: too short, or another magic byte."""


class BadEnvelope(BadRecord):
    """The Avro body does not decode with the schema it names, or an envelope value is impossible."""


class BadColumn(BadRecord):
    """A packed column is truncated, too long, or refers outside its dictionary."""
