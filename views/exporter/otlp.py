"""Sends metrics, events and spans to an OpenTelemetry Collector, by OTLP over HTTP. The extra `otel` has the SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider, ObservableGauge
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from drumline.infra.runtime.version import drumline_version
from drumline.infra.telemetry.metrics import EXPORTER_EXPORTS, EXPORTER_LEFT, Metric
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.schemas.topics import Topic
from drumline.views.exporter.events import VerdictEvent
from drumline.views.exporter.families import Families
from drumline.views.exporter.options import ExporterOptions
from drumline.views.exporter.request_spans import RequestSpan

log = structlog.get_logger()

#: Time for an answer of the Collector, and for what is left at the end; s.
TIMEOUT_S, CLOSE_S = 10.0, 5.0
#: Spans that wait; a request has up to four.
MOST_SPANS = 50_000
SCOPE = "drumline"
SEVERITIES = {0: SeverityNumber.INFO, 1: SeverityNumber.WARN, 2: SeverityNumber.WARN3, 3: SeverityNumber.ERROR}


class _Outcomes:
    """Counts exports of one kind, and logs when the Collector stops to take them and when it takes them again."""

    def __init__(self, kind: str, address: str) -> None:
        self._kind, self._address, self._is_failing = kind, address, False

    def count(self, is_sent: bool) -> None:
        EXPORTER_EXPORTS.labels(self._kind, "sent" if is_sent else "failed").inc()
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            if is_sent:
                log.info("the OpenTelemetry Collector takes exports again", kind=self._kind, address=self._address)
            else:
                log.warning("the OpenTelemetry Collector does not take exports; they are tried again",
                            kind=self._kind, address=self._address)  # fmt: skip


class _Metrics(OTLPMetricExporter):
    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self._outcomes = _Outcomes("otlp_metrics", address)

    def export(self, *args: Any, **kwargs: Any) -> MetricExportResult:
        result = super().export(*args, **kwargs)
        self._outcomes.count(result is MetricExportResult.SUCCESS)
        return result


class _Logs(OTLPLogExporter):
    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self._outcomes = _Outcomes("otlp_events", address)

    def export(self, *args: Any, **kwargs: Any) -> LogRecordExportResult:
        result = super().export(*args, **kwargs)
        self._outcomes.count(result is LogRecordExportResult.SUCCESS)
        return result


class _Spans(OTLPSpanExporter):
    """Sends spans. `taken`: spans that left the queue, sent or failed."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self._outcomes, self.taken = _Outcomes("otlp_spans", address), 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.taken += len(spans)
        self._outcomes.count(result is SpanExportResult.SUCCESS)
        return result


class Otlp:
    """Sends metrics each `otlp_s`, events and spans as they come, in threads of the SDK, which retries.

    Its queues are bounded. The SDK would drop spans beyond unsaid: those are counted before it gets them.
    """

    def __init__(self, of: ExporterOptions, ca: Path | None) -> None:
        self._now = Families()
        options: dict[str, Any] = {
            "headers": {"authorization": f"Bearer {of.otlp_token}"} if of.otlp_token else {},
            "timeout": TIMEOUT_S,
            "certificate_file": None if ca is None else str(ca),
        }
        address = of.otlp.rstrip("/")
        resource = Resource.create({"service.name": "drumline-exporter", "service.version": drumline_version()})
        reader = PeriodicExportingMetricReader(
            _Metrics(f"{address}/v1/metrics", **options),
            of.otlp_s * 1000,
            TIMEOUT_S * 1000,
            # The SDK's own limit of 2,000 series a metric would put the others into one.
            cardinality_limits={ObservableGauge: of.series + 1},
        )
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._meters.get_meter(SCOPE, drumline_version())
        for metric in VERDICT_METRICS:
            meter.create_observable_gauge(metric.name, [partial(self._observe, metric)], _unit(metric), metric.help)
        self._loggers = LoggerProvider(resource, shutdown_on_exit=False)
        self._loggers.add_log_record_processor(BatchLogRecordProcessor(_Logs(f"{address}/v1/logs", **options)))
        self._logger = self._loggers.get_logger(SCOPE, drumline_version())
        self._exported, self._queued = _Spans(f"{address}/v1/traces", **options), 0
        self._tracers = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(
            BatchSpanProcessor(self._exported, MOST_SPANS, max_export_batch_size=min(2_048, MOST_SPANS))
        )
        self._tracer = self._tracers.get_tracer(SCOPE, drumline_version())

    def take(self, now: Families, events: Sequence[VerdictEvent], spans: Sequence[RequestSpan]) -> None:
        """Keep the series for the next interval, and queue the events and spans."""
        for at, span in enumerate(spans):
            if self._queued - self._exported.taken + 1 + len(span.parts) > MOST_SPANS:
                EXPORTER_LEFT.labels(Topic.REQUEST, "too_many").inc(len(spans) - at)
                break
            self._queue(span)
        self._now = now
        for event in events:
            self._logger.emit(
                timestamp=event.time_ns,
                severity_number=SEVERITIES[event.severity],
                severity_text=event.state,
                body=event.text,
                attributes=event.attributes(),
                event_name=f"drumline.{event.kind}",
            )

    def _queue(self, span: RequestSpan) -> None:
        """Queue a request below its caller's span, and its parts below it."""
        caller = SpanContext(span.trace_id, span.parent_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        of_request = self._tracer.start_span(
            "inference request", set_span_in_context(NonRecordingSpan(caller)), attributes=span.attributes,
            start_time=span.begin_ns,
        )  # fmt: skip
        for name, begin_ns, end_ns in span.parts:
            self._tracer.start_span(name, set_span_in_context(of_request), start_time=begin_ns).end(end_ns)
        of_request.end(span.end_ns)
        self._queued += 1 + len(span.parts)

    def close(self) -> None:
        """Send what is queued, for CLOSE_S at most: the SDK waits longer for a Collector that does not answer."""
        closing = threading.Thread(target=self._shut_down, name="otlp", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _shut_down(self) -> None:
        self._loggers.shutdown()
        self._tracers.shutdown()
        self._meters.shutdown()

    def _observe(self, metric: Metric, _options: CallbackOptions) -> Iterator[Observation]:
        for labels, value in self._now.of(metric).items():
            yield Observation(value, dict(zip(metric.labels, labels, strict=True)))


def _unit(metric: Metric) -> str:
    units: dict[str, str] = {"seconds": "s", "ratio": "1"}
    return units.get(metric.name.rsplit("_", 1)[-1], "")
