"""The rules about jobs: of series that the exporter has, with their labels, and right by Prometheus' own tool."""

import re
import shutil
import subprocess

import prometheus_files
import pytest
import yaml

from drumline.infra.grafana.provisioning.rules import duration
from drumline.infra.telemetry.metrics import METRICS
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.infra.telemetry.verdict_rules import RECORDING, RULES

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool (Debian: prometheus) is not there")
SERIES = {metric.name: metric for metric in (*METRICS, *VERDICT_METRICS)}
JOB = 'job="j", run="r"'

#: Series of 20 minutes, and the alerts that fire at their end.
CASES = {
    "a job that hangs": ({f'drumline_job_state{{{JOB}, state="hung", cause="not_called"}}': "_x18 1x10"}, ["JobHung"]),
    "a job that moves again": ({f'drumline_job_state{{{JOB}, state="hung"}}': "1x10 _x20"}, []),
    "a late rank": ({f'drumline_rank_state{{{JOB}, rank="3", state="critical"}}': "1x30"}, ["RankLate"]),
    "a slow rank": ({f'drumline_rank_state{{{JOB}, rank="3", state="warning"}}': "_x10 1x20"}, ["RankSlow"]),
    "a rank that was slow for a moment": ({f'drumline_rank_state{{{JOB}, rank="3", state="warning"}}': "_x18 1x9"}, []),
    "a healthy job": ({f'drumline_job_state{{{JOB}, state="ok"}}': "1x30"}, []),
    "no verdicts": ({f'drumline_job_state{{{JOB}, state="insufficient_data"}}': "1x30"}, ["JobNotEvaluated"]),
    "a lost GPU": ({'drumline_gpu_lost{UUID="GPU-1", host="h"}': "_x19 1x9"}, ["GpuNotAnswering"]),
    "too many jobs": ({'drumline_exporter_unlisted_units{kind="job"}': "5x30"}, ["SeriesLeftOut"]),
}
#: Expression -> its samples, of the series below.
VALUES = {
    "job_run:drumline_rank_gpu_lost_seconds:sum": 17,
    "job_run:drumline_gpu_lost:ratio": 0.25,
    "job_run:drumline_verdict_age_seconds": 60,
    # The join that DCGM's users ask for: utilisation by job and rank.
    "DCGM_FI_DEV_GPU_UTIL * on (UUID) group_left (job, run, rank) drumline_gpu_info": 90,
}
INPUT = {
    f'drumline_rank_gpu_lost_seconds{{{JOB}, rank="1"}}': "4x30",
    f'drumline_rank_gpu_lost_seconds{{{JOB}, rank="2"}}': "8x30",
    f"drumline_job_rest_gpu_lost_seconds{{{JOB}}}": "5x30",
    f"drumline_job_gpu_lost_seconds{{{JOB}}}": "20x30",
    f"drumline_job_window_seconds{{{JOB}}}": "10x30",
    f"drumline_job_world_ranks{{{JOB}}}": "8x30",
    f"drumline_job_window_end_timestamp_seconds{{{JOB}}}": "1140x30",
    'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1", Hostname="n"}': "90x30",
    f'drumline_gpu_info{{{JOB}, rank="1", UUID="GPU-1", host="h"}}': "1x30",
}


def promtool(tmp_path, *tests):
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(prometheus_files.VERDICTS)], "tests": list(tests)}))
    return subprocess.run([PROMTOOL, "test", "rules", path], capture_output=True, text=True, check=False)


def given(series):
    return [{"series": name, "values": values} for name, values in series.items()]


def test_the_file_is_generated_and_holds_every_rule():
    text = prometheus_files.VERDICTS.read_text()
    assert text == prometheus_files.verdicts(), "run `make docs`"
    recording, alerts = yaml.safe_load(text)["groups"]
    assert [(rule["record"], rule["expr"]) for rule in recording["rules"]] == [(r.name, r.expr) for r in RECORDING]
    assert [(rule["alert"], rule["expr"], rule["for"]) for rule in alerts["rules"]] == [
        (rule.name, rule.expr, duration(rule.holds_s)) for rule in RULES
    ]


@pytest.mark.parametrize("rule", [*RULES, *RECORDING], ids=lambda rule: rule.name)
def test_a_rule_is_of_series_and_labels_that_there_are(rule):
    names = re.findall(r"\bdrumline_\w+", rule.expr)
    assert names
    assert set(names) <= SERIES.keys()
    for name, matchers in re.findall(r"(drumline_\w+)\{([^}]*)\}", rule.expr):
        assert set(re.findall(r"(\w+)=", matchers)) <= set(SERIES[name].labels)


def test_a_rule_states_what_to_do():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.meaning
        assert rule.check.endswith(".")
        assert rule.act.endswith(".")


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_prometheus_fires_on(tmp_path, name):
    series, alerts = CASES[name]
    tests = [
        {"interval": "1m", "input_series": given(series), "promql_expr_test": [
            {"expr": f"count(ALERTS{{alertname='{rule.name}', alertstate='firing'}}) or vector(0)",
             "eval_time": "20m",
             "exp_samples": [{"labels": "{}", "value": int(rule.name.removeprefix("Drumline") in alerts)}]}]}
        for rule in RULES
    ]  # fmt: skip
    answer = promtool(tmp_path, *tests)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_promtool
def test_prometheus_computes_the_series_and_joins_them_with_dcgms(tmp_path):
    expected = [
        {"expr": f"sum({expr})", "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in VALUES.items()
    ]
    answer = promtool(tmp_path, {"interval": "1m", "input_series": given(INPUT), "promql_expr_test": expected})
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_promtool
def test_prometheus_accepts_the_rules_and_the_names_of_the_metrics(tmp_path):
    files = [prometheus_files.PAGE, prometheus_files.VERDICTS]
    checked = subprocess.run([PROMTOOL, "check", "rules", *files], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES) + len(RECORDING)} rules found" in checked.stdout
