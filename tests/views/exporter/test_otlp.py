"""The content that a Collector gets by OTLP: series of a scrape, each event once; one that fails costs nothing."""

import socket
import threading

from support.metrics_scraper import until
from support.otlp_receiver import attributes, options_of, receiving, seen
from support.request_rows import engine_request, requests_table
from support.verdict_worlds import NOW, hang, late_job, wide_window

from drumline.infra.telemetry.metrics import EXPORTER_EXPORTS, EXPORTER_LEFT
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.views.exporter.otlp import Otlp
from drumline.views.exporter.request_spans import request_spans

TRACE, CALLER, PARTS = "ab" * 16, "cd" * 8, ("queue", "prefill", "decode")
#: The first is sampled; the others are not, or are no context.
CONTEXTS = (f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00", "", f"00-{'0' * 32}-{CALLER}-01", "00-ab-cd-01")


def test_the_collector_gets_the_series_of_a_scrape_and_each_event_once():
    shown, events = seen(late_job(job="j", run="r"), hang("hung", (5,), job="h"))
    with receiving() as receiver:
        otlp = Otlp(options_of(receiver.address, otlp_token="t0ken"), None)
        otlp.take(shown, events, [])
        until(lambda: receiver.points().get("drumline_rank_state") and receiver.logs())
        otlp.close()
    points = receiver.points()
    for metric in VERDICT_METRICS:
        expected = {frozenset(zip(metric.labels, labels, strict=True)): v for labels, v in shown.of(metric).items()}
        assert {frozenset(named.items()): value for named, value in points.get(metric.name, [])} == expected
    assert {path for path, _, _ in receiver.requests} == {"/v1/metrics", "/v1/logs"}
    assert {headers["authorization"] for _, headers, _ in receiver.requests} == {"Bearer t0ken"}
    records = {record.event_name: record for record in receiver.logs()}
    assert len(receiver.logs()) == len(events) == 2
    verdict = records["drumline.verdict"]
    assert (verdict.severity_text, verdict.severity_number) == ("critical", 17)
    assert "rank 3" in verdict.body.string_value
    about = attributes(verdict.attributes)
    assert (about["drumline.job"], about["drumline.rank"], about["drumline.cause"]) == ("j", 3, "host_stall")
    assert attributes(records["drumline.hang"].attributes)["host.name"] == "h5"


def test_more_series_than_the_sdks_own_limit_arrive_as_they_are():
    shown, _ = seen(wide_window(4_000))
    with receiving() as receiver:
        otlp = Otlp(options_of(receiver.address), None)
        otlp.take(shown, [], [])
        until(lambda: receiver.points().get("drumline_gpu_info"))
        otlp.close()
    points = receiver.points()["drumline_gpu_info"]
    assert len(points) > 2_500
    assert not any("otel.metric.overflow" in named for named, _ in points)


def test_a_collector_that_refuses_is_counted_and_what_follows_arrives():
    failed = EXPORTER_EXPORTS.labels("otlp_metrics", "failed")
    before, (shown, _) = failed._value.get(), seen(late_job())
    with receiving() as receiver:
        receiver.status = 400
        otlp = Otlp(options_of(receiver.address), None)
        otlp.take(shown, [], [])
        until(lambda: failed._value.get() > before)
        receiver.status = 200
        until(lambda: receiver.points().get("drumline_job_state"))
        otlp.close()


def test_the_end_does_not_wait_for_a_collector_that_does_not_answer(monkeypatch):
    monkeypatch.setattr("drumline.views.exporter.otlp.CLOSE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        otlp = Otlp(options_of(f"http://127.0.0.1:{silent.getsockname()[1]}"), None)
        otlp.take(*seen(late_job()), [])
        otlp.close()
        assert "otlp" in {thread.name for thread in threading.enumerate()}, "it still waits, the program does not"


def test_a_request_is_a_span_below_its_callers_with_its_parts_below_it():
    rows = [engine_request(f"{n:032x}", traceparent) for n, traceparent in enumerate(CONTEXTS)]
    spans = list(request_spans(requests_table(rows)))
    with receiving() as receiver:
        otlp = Otlp(options_of(receiver.address), None)
        otlp.take(*seen(late_job()), spans)
        until(receiver.spans)
        otlp.close()
    came = {span.name: span for span in receiver.spans()}
    assert len(receiver.spans()) == len(came) == 4
    whole = came["inference request"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, CALLER)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (NOW, NOW + 900)
    about = attributes(whole.attributes)
    assert (about["gen_ai.request.model"], about["gen_ai.usage.output_tokens"], about["drumline.job"]) == ("m", 7, "j")
    assert "drumline.adapter" not in about
    parts = {name: (came[name].start_time_unix_nano - NOW, came[name].end_time_unix_nano - NOW) for name in PARTS}
    assert parts == {"queue": (0, 100), "prefill": (100, 400), "decode": (400, 900)}
    assert {came[name].parent_span_id for name in PARTS} == {whole.span_id}


def test_spans_that_find_no_room_are_counted(monkeypatch):
    monkeypatch.setattr("drumline.views.exporter.otlp.MOST_SPANS", 9)
    monkeypatch.setattr("drumline.views.exporter.otlp.CLOSE_S", 0.01)
    left = EXPORTER_LEFT.labels("gpu.request.v1", "too_many")
    before = left._value.get()
    spans = list(request_spans(requests_table([engine_request(str(n), CONTEXTS[0]) for n in range(5)])))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        otlp = Otlp(options_of(f"http://127.0.0.1:{silent.getsockname()[1]}"), None)
        otlp.take(*seen(late_job()), spans)
        otlp.close()
    assert left._value.get() - before == 3
