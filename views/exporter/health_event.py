"""NVSentinel's health event (its data-models/protobufs/health_event.proto): its messages, and those of our events.

The messages are declared by numbers and types of their fields, as protobuf's wire format needs them, so that nothing is
generated. Fields that drumline leaves out are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from drumline.views.exporter.events import GPU_LOST, HANG, VERDICT, VerdictEvent

#: The gRPC method of the platform connector.
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
#: Names of the checks, which are conditions of a node in Kubernetes.
CHECKS = {VERDICT: "DrumlineStraggler", HANG: "DrumlineHang", GPU_LOST: "DrumlineGpuLost"}
#: Values of ProcessingStrategy: modules act on an event, or it is only stored.
ACT, STORE = 1, 2
_TEXT, _BOOL, _UINT32, _MESSAGE = 9, 8, 13, 11
_Field = tuple[str, int, int, bool, str]
_FIELDS: dict[str, tuple[_Field, ...]] = {
    "Entity": (("entityType", 1, _TEXT, False, ""), ("entityValue", 2, _TEXT, False, "")),
    "Pair": (("key", 1, _TEXT, False, ""), ("value", 2, _TEXT, False, "")),
    "HealthEvent": (
        ("version", 1, _UINT32, False, ""), ("agent", 2, _TEXT, False, ""), ("componentClass", 3, _TEXT, False, ""),
        ("checkName", 4, _TEXT, False, ""), ("isFatal", 5, _BOOL, False, ""), ("isHealthy", 6, _BOOL, False, ""),
        ("message", 7, _TEXT, False, ""), ("recommendedAction", 8, _UINT32, False, ""),
        ("errorCode", 9, _TEXT, True, ""), ("entitiesImpacted", 10, _MESSAGE, True, ".datamodels.Entity"),
        ("metadata", 11, _MESSAGE, True, ".datamodels.Pair"),
        ("generatedTimestamp", 12, _MESSAGE, False, ".google.protobuf.Timestamp"),
        ("nodeName", 13, _TEXT, False, ""), ("processingStrategy", 16, _UINT32, False, ""),
    ),
    "HealthEvents": (("version", 1, _UINT32, False, ""), ("events", 2, _MESSAGE, True, ".datamodels.HealthEvent")),
}  # fmt: skip


@cache
def message_classes() -> dict[str, Any]:
    """Return name -> class of each message. On the wire a map is a repeated pair, and an enum is its number."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="health_event.proto", package="datamodels", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated, of in fields:
            label: Any = 3 if is_repeated else 1
            added = message.field.add(name=field, number=number, label=label)
            added.type = kind
            if of:
                added.type_name = of
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"datamodels.{name}")) for name in _FIELDS}


def health_events(events: Iterable[VerdictEvent], acts: bool) -> Any:
    """Return the message of events about nodes. `acts`: NVSentinel may act on them, else it only stores them."""
    classes = message_classes()
    out = classes["HealthEvents"](version=1)
    for event in events:
        added = out.events.add(
            version=1, agent="drumline", componentClass="GPU", checkName=CHECKS[event.kind],
            isFatal=event.kind == GPU_LOST and not event.is_over, isHealthy=event.is_over, message=event.text,
            nodeName=event.row.host, processingStrategy=ACT if acts else STORE,
        )  # fmt: skip
        if not event.is_over:
            added.errorCode.append(event.row.cause)
        if event.row.gpu_uuid:
            added.entitiesImpacted.add(entityType="GPU_UUID", entityValue=event.row.gpu_uuid)
        added.generatedTimestamp.FromNanoseconds(event.time_ns)
        about = {"job": event.job, "run": event.run, "rank": str(event.row.rank), "event_id": event.id}
        for name, value in about.items():
            added.metadata.add(key=name, value=value)
    return out
