"""Health events reach a platform connector over its socket, as the messages of NVSentinel's protocol."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, timestamp_pb2
from support.metrics_scraper import until
from support.verdict_worlds import NOW, SECOND, hang, healthy_job, late_job, lost

from drumline.views.exporter.events import EventLog
from drumline.views.exporter.families import Families
from drumline.views.exporter.health_event import METHOD
from drumline.views.exporter.live_runs import LiveRuns
from drumline.views.exporter.nvsentinel import NvSentinel

#: The receiver's own declaration: map and enums as NVSentinel's file has them, which the wire format does not show.
PROTO = """
name: "receiver.proto" package: "datamodels" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
enum_type { name: "ProcessingStrategy" value { name: "UNSPECIFIED" number: 0 }
  value { name: "EXECUTE_REMEDIATION" number: 1 } value { name: "STORE_ONLY" number: 2 } }
enum_type { name: "RecommendedAction" value { name: "NONE" number: 0 } value { name: "CONTACT_SUPPORT" number: 5 } }
message_type { name: "Entity"
  field { name: "entityType" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "entityValue" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "HealthEvents"
  field { name: "version" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  field { name: "events" number: 2 type: TYPE_MESSAGE type_name: ".datamodels.HealthEvent" label: LABEL_REPEATED } }
message_type { name: "HealthEvent"
  nested_type { name: "MetadataEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
  field { name: "version" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  field { name: "agent" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "componentClass" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "checkName" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "isFatal" number: 5 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "isHealthy" number: 6 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "message" number: 7 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "recommendedAction" number: 8 type: TYPE_ENUM type_name: ".datamodels.RecommendedAction"
    label: LABEL_OPTIONAL }
  field { name: "errorCode" number: 9 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "entitiesImpacted" number: 10 type: TYPE_MESSAGE type_name: ".datamodels.Entity" label: LABEL_REPEATED }
  field { name: "metadata" number: 11 type: TYPE_MESSAGE type_name: ".datamodels.HealthEvent.MetadataEntry"
    label: LABEL_REPEATED }
  field { name: "generatedTimestamp" number: 12 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
    label: LABEL_OPTIONAL }
  field { name: "nodeName" number: 13 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "processingStrategy" number: 16 type: TYPE_ENUM type_name: ".datamodels.ProcessingStrategy"
    label: LABEL_OPTIONAL } }
"""


def message_class():
    from google.protobuf import text_format

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("datamodels.HealthEvents"))


class Connector(grpc.GenericRpcHandler):
    """Takes events; while `is_busy`, it answers with an error."""

    def __init__(self):
        self.events, self.is_busy, self.rejected, self.kind = [], False, 0, message_class()

    def service(self, call):
        assert call.method == METHOD
        return grpc.unary_unary_rpc_method_handler(
            self.take, self.kind.FromString, lambda message: message.SerializeToString()
        )

    def take(self, request, context):
        if self.is_busy:
            self.rejected += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.events += request.events
        return empty_pb2.Empty()


@pytest.fixture
def socket(tmp_path):
    return tmp_path / "connector.sock"


@pytest.fixture
def connector(socket):
    server, handler = grpc.server(ThreadPoolExecutor(2)), Connector()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    yield handler
    server.stop(0).wait()


def changes(*steps):
    """Events of a fleet after each step: batches or samples of GPUs."""
    fleet, log, out = LiveRuns(), EventLog(), []
    for number, step in enumerate(steps):
        fleet.take_samples(step) if not hasattr(step, "envelope") else fleet.take(step)
        out.append(log.advance(fleet, NOW + number * SECOND))
    return out


def sent(connector, socket, events, *, acts=False):
    client = NvSentinel(socket, acts)
    client.take(Families(), events, [])
    client.close()
    return connector.events


def test_a_late_rank_makes_its_node_unhealthy_and_the_end_of_its_alarm_healthy_again(connector, socket):
    late = late_job(job="j", run="r", hosts=["", "node-a"], gpu_uuids=["", "GPU-3"])
    rank = late.columns["rank"]
    late.columns |= {"host": (rank == 3).astype("<u4"), "gpu_uuid": (rank == 3).astype("<u4")}
    began, over = changes(late, healthy_job(NOW + SECOND, job="j", run="r"))
    bad, good = sent(connector, socket, [*began, *over])
    assert (bad.agent, bad.checkName, bad.nodeName, bad.componentClass) == (
        "drumline", "DrumlineStraggler", "node-a", "GPU",
    )  # fmt: skip
    assert (bad.isHealthy, bad.isFatal, list(bad.errorCode)) == (False, False, ["host_stall"])
    assert [(entity.entityType, entity.entityValue) for entity in bad.entitiesImpacted] == [("GPU_UUID", "GPU-3")]
    assert {name: bad.metadata[name] for name in ("job", "run", "rank")} == {"job": "j", "run": "r", "rank": "3"}
    assert bad.generatedTimestamp.ToNanoseconds() == NOW
    assert "rank 3" in bad.message
    assert bad.processingStrategy == 2, "it is only stored"
    assert (good.isHealthy, good.nodeName, good.checkName, list(good.errorCode)) == (
        True, "node-a", "DrumlineStraggler", [],
    )  # fmt: skip


def test_a_lost_gpu_is_fatal_and_nvsentinel_acts_where_that_is_asked_for(connector, socket):
    [events] = changes(lost("node-b", "GPU-1", 1, job="j", run="r"))
    [event] = sent(connector, socket, events, acts=True)
    assert (event.isFatal, event.checkName, event.nodeName) == (True, "DrumlineGpuLost", "node-b")
    assert event.processingStrategy == 1


def test_what_is_about_no_node_is_not_sent(connector, socket):
    nowhere = late_job(hosts=[""])
    nowhere.columns["host"] = np.zeros(nowhere.rows, "<u4")
    events = [*changes(hang("hung", (1, 2)))[0], *changes(hang("hung", (1,)))[0], *changes(nowhere)[0]]
    assert [event.nodeName for event in sent(connector, socket, events)] == ["h1"]


def test_an_event_is_sent_again_until_the_connector_takes_it(connector, socket):
    connector.is_busy = True
    client = NvSentinel(socket, acts=False)
    client.take(Families(), changes(hang("hung", (1,)))[0], [])
    until(lambda: connector.rejected >= 2)
    connector.is_busy = False
    until(lambda: connector.events)
    client.close()
    assert len(connector.events) == 1
