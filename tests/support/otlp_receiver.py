"""An OTLP receiver over HTTP in this process, which decodes what it is sent with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.verdict_worlds import NOW

from drumline.views.exporter.events import EventLog
from drumline.views.exporter.families import SeriesLimits, families
from drumline.views.exporter.live_runs import LiveRuns
from drumline.views.exporter.options import ExporterOptions

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


def attributes(of):
    """Name -> value of a list of attributes."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of}


class Receiver:
    """`requests`: (path, headers, message). `status`: of the answers."""

    def __init__(self):
        self.requests, self.status = [], 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if receiver.status == 200:
                    message = KINDS[self.path].FromString(body)
                    receiver.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, message))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def points(self):
        """Metric -> list of (attributes, value) of its newest request."""
        newest = {}
        for path, _, message in self.requests:
            if path == "/v1/metrics":
                for metric in (m for r in message.resource_metrics for s in r.scope_metrics for m in s.metrics):
                    newest[metric.name] = [
                        (attributes(p.attributes), getattr(p, p.WhichOneof("value"))) for p in metric.gauge.data_points
                    ]
        return newest

    def spans(self):
        """All spans, in the order in which they came."""
        return self._records("/v1/traces", "resource_spans", "scope_spans", "spans")

    def logs(self):
        """All log records, in the order in which they came."""
        return self._records("/v1/logs", "resource_logs", "scope_logs", "log_records")

    def _records(self, path, resources, scopes, records):
        return [
            record
            for came, _, message in self.requests
            if came == path
            for resource in getattr(message, resources)
            for scope in getattr(resource, scopes)
            for record in getattr(scope, records)
        ]


@contextmanager
def receiving():
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def options_of(address, **values):
    """Options of an exporter that sends to a Collector each second."""
    return ExporterOptions(otlp=address, otlp_s=1, **values)


def seen(*batches, series=4_500):
    """The series and the events of batches."""
    fleet = LiveRuns()
    for batch in batches:
        fleet.take(batch)
    return families(fleet, SeriesLimits(32, series), NOW), EventLog().advance(fleet, NOW)
