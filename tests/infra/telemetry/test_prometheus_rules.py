"""The alert rules for Prometheus: as generated, of metrics that exist, and right by Prometheus' own tool."""

import re
import shutil
import subprocess
from pathlib import Path

import prometheus_files
import pytest
import yaml

from drumline.infra.telemetry.metrics import METRICS
from drumline.infra.telemetry.prometheus_rules import RULES

FOLDER = Path(__file__).parents[3] / "infra" / "prometheus"
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not there")

#: Series of a quarter of an hour and more, each minute, and the alerts that fire after 20 minutes.
CASES = {
    "a program that is down": ({'up{job="drumline", instance="h:1"}': "1x10 0x20"}, ["DrumlineProgramDown"]),
    "a program that waits": ({'drumline_sink_ready{instance="h:1"}': "1x15 0x20"}, ["DrumlineNotReady"]),
    "one that waited for a moment": ({'drumline_sink_ready{instance="h:1"}': "1x5 0 1x20"}, []),
    "the first event of a counter": ({"drumline_stream_halts_total": "_x12 1x20"}, ["DrumlineWorkerHalted"]),
    "an event that is long over": ({"drumline_stream_halts_total": "1x40"}, []),
    "an event after a restart": ({"drumline_stream_halts_total": "5x10 0 0 0 0 0 0 1x14"}, ["DrumlineWorkerHalted"]),
    "a restart without an event": ({"drumline_stream_halts_total": "5x10 0x25"}, []),
    "rows of a forgotten gap": (
        {'drumline_stream_dropped_rows_total{reason="repeated"}': "0x12 7x20"}, ["DrumlineRowsNotCounted"],
    ),
    "late rows": ({'drumline_stream_dropped_rows_total{reason="late"}': "0x12 7x20"}, []),
    "a clock that is behind": ({"drumline_stream_clock_skew_seconds": "-300x30"}, ["DrumlineClockSkew"]),
    "a worker that falls behind": (
        {"drumline_stream_lag_records": "0+100x30", "drumline_stream_last_commit_age_seconds": "0+60x30"},
        ["DrumlineLagGrows"],
    ),
    "a worker that falls behind and commits": (
        {"drumline_stream_lag_records": "0+100x30", "drumline_stream_last_commit_age_seconds": "1x30"}, [],
    ),
}  # fmt: skip


def test_the_file_is_generated_from_the_list():
    assert prometheus_files.PAGE.read_text() == prometheus_files.page(), "run `make docs`"


def test_every_rule_is_of_metrics_that_a_program_has_and_states_what_to_do():
    known = {metric.name for metric in METRICS}
    for rule in RULES:
        assert set(re.findall(r"drumline_\w+", rule.expr)) <= known
        assert rule.meaning
        assert rule.check.endswith((".", "?"))
        assert rule.act.endswith(".")
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_example_scrapes_the_default_ports_under_the_jobs_name_of_the_rules():
    [job] = yaml.safe_load((FOLDER / "scrape.yml").read_text())["scrape_configs"]
    assert job["job_name"] == "drumline"
    assert [t for config in job["static_configs"] for t in config["targets"]] == [
        f"127.0.0.1:{port}" for port in (19464, 19465, 19466, 19467)
    ]


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_prometheus_fires_on(tmp_path, name):
    series, alerts = CASES[name]
    values = [{"series": text, "values": numbers} for text, numbers in series.items()]
    expected = {rule.name: [] for rule in RULES}
    done = tmp_path / "tests.yml"
    for alert in expected:
        fires = alert in alerts
        test = {"interval": "1m", "input_series": values, "promql_expr_test": [
            {"expr": f"count(ALERTS{{alertname='{alert}', alertstate='firing'}}) or vector(0)", "eval_time": "20m",
             "exp_samples": [{"labels": "{}", "value": int(fires)}]}]}  # fmt: skip
        expected[alert] = test
    done.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "rules.yml")], "tests": list(expected.values())}))
    answer = subprocess.run(["promtool", "test", "rules", done], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
