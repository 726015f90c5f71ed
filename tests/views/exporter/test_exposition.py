"""Bodies of a scrape: both formats parse to the same series, whatever names jobs have; a scrape renders nothing."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from support.verdict_worlds import NOW, late_job, wide_window

from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.views.exporter.exposition import Exposition
from drumline.views.exporter.families import SeriesLimits, families
from drumline.views.exporter.live_runs import LiveRuns

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def rendered(*windows, series=4_500):
    fleet = LiveRuns()
    for window in windows:
        fleet.take(window)
    shown, exposition = families(fleet, SeriesLimits(32, series), NOW), Exposition()
    exposition.render(shown)
    return shown, exposition


def series(families):
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.mark.parametrize("name", ["plain", 'a"b\\c\nd', "{job='x'} 1 # EOF", "größe 名前"])
def test_both_formats_have_the_same_series_whatever_the_names(name):
    shown, exposition = rendered(late_job(job=name, run=name))
    plain, kind = exposition.expose("")
    assert kind.startswith("text/plain; version=0.0.4")
    openmetrics, kind = exposition.expose(OPEN)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    parsed = series(plain_families(plain.decode()))
    assert (
        parsed.items()
        >= series(
            f for f in open_families(openmetrics.decode()) if not f.name.startswith(("process_", "drumline_exporter_"))
        ).items()
    )
    for metric in VERDICT_METRICS:
        for labels, value in shown.of(metric).items():
            named = dict(zip(metric.labels, labels, strict=True))
            assert parsed[metric.name, frozenset(named.items())] == value


def test_16384_ranks_are_one_body_of_5000_series_at_most():
    shown, exposition = rendered(wide_window(16_384, late=range(200)))
    body, _ = exposition.expose(OPEN)
    lines = [line for line in body.decode().splitlines() if line and not line.startswith("#")]
    assert shown.size <= len(lines) <= 5_000
    assert body.count(b"# EOF\n") == 1
    assert body.endswith(b"# EOF\n")


def test_names_and_units_of_the_metrics_follow_prometheus_rules():
    names = [metric.name for metric in VERDICT_METRICS]
    assert len(set(names)) == len(names)
    for metric in VERDICT_METRICS:
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_ms", "_ns", "_percent"))
        assert metric.kind == "gauge"
