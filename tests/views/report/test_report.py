"""The report: its texts, its charts, and that nothing from a job gets into the page as HTML."""

import json
import re
import sys
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.report_data import HOSTILE, evidence, report_data

from drumline.views.report import charts as report_charts
from drumline.views.report import heat_map, queries
from drumline.views.report import text as report_text
from drumline.views.report.data import NoSuchRun, find_run
from drumline.views.report.page import environment, page, prepare
from drumline.views.report.text import occupancy, occupancy_note

ROOT = Path(__file__).parents[3]
CREATED = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


class Reader(HTMLParser):
    """Elements with attributes, and the text of the page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def test_summary_names_rank_share_cost_steps_and_cause():
    sentences = report_text.summary(report_data(price_per_gpu_hour=3600.0))
    assert sentences[0] == (
        "Rank 3 (node-b) cost this job 4.1% of its time: 12.3 GPU-seconds, 12.30 at 3600 per GPU-hour, in steps 100 to "
        "139. Cause: slow copy; it copied from or to pageable host memory; pinned memory is faster (confidence high)."
    )


def test_summary_adds_up_the_causes_of_a_rank_and_puts_the_dearest_first():
    row = report_data().cost[0]
    cost = [{**row, "rank": 1, "lost_s": 3.0, "gpu_seconds": 9.0}, {**row, "lost_s": 2.0, "gpu_seconds": 6.0},
            {**row, "lost_s": 2.0, "gpu_seconds": 5.0, "cause": "unknown"}]  # fmt: skip
    by_rank = report_text.by_rank(report_data(cost=cost))
    assert [(r["rank"], r["gpu_seconds"], r["cause"]) for r in by_rank] == [
        (3, 11.0, "slow_copy"),
        (1, 9.0, "slow_copy"),
    ]


def test_summary_reports_insufficient_data_instead_of_healthy():
    none = {**report_data().windows, "windows": 0, "evaluated": 0}
    assert report_text.summary(report_data(windows=none, cost=[], episodes=[]))[0].startswith("Insufficient data")
    no_evaluated = {**none, "windows": 7, "measured": 7, "reason": "ranks_missing"}
    assert report_text.summary(report_data(windows=no_evaluated, cost=[], episodes=[])) == [
        "drumline cannot judge this job: too many of its ranks have never reported a step. Start drumline in all "
        "processes of the job, and an agent on each of its hosts."
    ]
    five_evaluated = {**none, "windows": 7, "measured": 7, "evaluated": 5, "reason": "few_steps_recorded"}
    five_evaluated["unevaluated"] = [(40, 59), (60, 79)]
    sentences = report_text.summary(report_data(windows=five_evaluated, cost=[], episodes=[]))
    assert sentences == [
        "No rank held this job back in the 5 windows of steps that could be evaluated.",
        "Insufficient data in 2 of 7 windows of steps, steps 40 to 79: most steps of a window were not recorded, or "
        "their rows were lost.",
    ]


@pytest.mark.parametrize(
    ("measured", "evaluated", "first"),
    [(50, 44, "drumline cannot judge this job in 6 of 50 windows of steps: its ranks met"), (50, 45, "Rank 3")],
)
def test_a_report_begins_with_what_could_not_be_evaluated_if_that_is_much(measured, evaluated, first):
    counts = {"windows": measured, "measured": measured, "evaluated": evaluated, "reason": "no_collectives"}
    windows = {**report_data().windows, **counts}
    assert report_text.summary(report_data(windows=windows))[0].startswith(first)


def test_windows_that_wait_for_a_past_are_not_missing():
    counts = {"windows": 13, "measured": 10, "evaluated": 10, "reason": "no_past"}
    sentences = report_text.summary(report_data(windows={**report_data().windows, **counts}))
    assert "cannot judge" not in " ".join(sentences)


def test_a_job_whose_steps_are_not_known_is_stated():
    none = {**report_data().windows, "windows": 0, "evaluated": 0}
    run = {**report_data().run, "steps": 0}
    [sentence] = report_text.summary(report_data(windows=none, cost=[], episodes=[], run=run))
    assert sentence.startswith("drumline cannot judge this job: no steps of it are known")
    assert "`drumline.step(n)`" in sentence


def test_a_report_begins_with_ranks_that_never_reported():
    run = {**report_data().run, "world": 5, "unreported": [4], "unreported_ranks": 1}
    sentences = report_text.summary(report_data(run=run))
    assert sentences[0].startswith("Rank 4 of 5 has never reported. ")
    assert sentences[1:] == report_text.summary(report_data())


def test_a_stage_that_works_longer_by_design_is_stated_once_beside_the_verdicts():
    stages = {"rank": 6, "longest": 3, "of": 4, "longer": 0.5996, "bubble": 0.1341}
    windows = {**report_data().windows, "windows": 12, "stages": json.dumps({"stages": stages, "steps_from": "api"})}
    late, stated, insufficient = report_text.summary(report_data(windows=windows))
    assert late.startswith("Rank 3")
    assert stated.startswith("Stage 3 of 0 to 3, that of rank 6, works 60% longer than the other stages")
    assert "the bubble costs 13% of the time" in stated
    assert insufficient.startswith("Insufficient data")


def test_the_job_as_a_whole_is_not_a_rank():
    row = {"rank": -1, "host": ""}
    data = report_data()
    data = replace(data, cost=[{**data.cost[0], **row}], episodes=[{**data.episodes[0], **row, "cause": "slow_link"}])
    assert report_text.summary(data)[0].startswith("The job as a whole lost 4.1% of its time")


def test_evidence_is_text_and_nonsense_is_left_out():
    assert report_text.evidence(evidence(), 20) == [
        "against its peers: copy +6.1 ms, compute -0.2 ms a step",
        "1.00 times their blocks, 1.25 times their kernels",
        "AllReduce 3 of step 86 took 0.6 ms on it, 27.6 ms on the rank that waited longest",
    ]
    for nonsense in ("", "{", "[]", "null", '{"excess_ns": 3, "ratios": [], "collective": 1}'):
        assert report_text.evidence(nonsense, 20) == []


def test_what_the_host_did_is_text():
    text = json.dumps({"host": {"run_queue_ns": 812_000_000, "disk_ns": 30_000_000, "major_faults": 1_200}})
    expected = "812.0 ms without a CPU, 30.0 ms waiting for a disk, 1,200 major page faults"
    assert report_text.evidence(text, 1) == [f"its process had more than its peers', a step: {expected}"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({"disk_ns": 2_500_000}, ["its process had more than its peers', a step: 2.5 ms waiting for a disk"]),
        ({"gil_ns": 40_000_000}, ["its process had more than its peers', a step: 40.0 ms waiting for the GIL"]),
        ({"major_faults": 7}, ["its process had more than its peers', a step: 7 major page faults"]),
        ({"a_newer_worker_has_this": 7}, []),
    ],
)
def test_a_process_that_had_more_of_one_thing_alone_is_explained(host, expected):
    assert report_text.evidence(json.dumps({"host": host}), 1) == expected


def test_every_cause_that_verdicts_name_has_a_meaning():
    schema = json.loads((ROOT / "schemas/avro/gpu.straggler.v1.avsc").read_text())
    [causes] = [f["doc"] for f in schema["fields"] if f["name"] == "causes"]
    for cause in set(causes.split(", ")) - {"ok"}:
        assert report_text.meaning(cause, ""), cause


def test_a_rank_that_was_late_several_times_is_not_late_mostly_in_one_of_them():
    row = report_data().episodes[0]
    later = {**row, "first_step": 500, "last_step": 519, "gpu_seconds": row["gpu_seconds"] / 2}
    [sentence, *_] = report_text.summary(report_data(episodes=[row, later]))
    assert "2 times, the most expensive in steps 100 to 139" in sentence


def test_a_fault_that_comes_back_at_one_distance_is_stated_with_it():
    row = report_data().episodes[0]
    first = [{**row, "first_step": step, "last_step": step + 19} for step in (100, 216, 330, 446)]
    [sentence, *_] = report_text.summary(report_data(episodes=first))
    assert "4 times, every 115 steps, the most expensive" in sentence
    [sentence, *_] = report_text.summary(report_data(episodes=[*first, {**row, "first_step": 700, "last_step": 719}]))
    assert "5 times, the most expensive" in sentence


def test_the_costs_of_several_ranks_are_added_up_in_the_first_sentence():
    row = report_data().cost[0]
    cost = [row, {**row, "rank": 1, "lost_s": 3.0, "gpu_seconds": 9.0}]
    [total, worst, *_] = report_text.summary(report_data(cost=cost, price_per_gpu_hour=3600.0))
    assert total == "In all, this job lost 5.3% of its GPU time: 21.3 GPU-seconds, 21.30 at 3600 per GPU-hour."
    assert worst.startswith("Rank 3")


def test_page_shows_every_part_and_loads_nothing():
    text = page(report_data(), CREATED)
    reader = Reader(text)
    assert sum(tag == "svg" for tag, _ in reader.elements) == 8
    assert not {tag for tag, _ in reader.elements} & {"script", "iframe", "object", "embed", "img", "form", "base"}
    loads = [
        v for _, a in reader.elements for k, v in a.items() if k in ("src", "href", "xlink:href", "srcset", "data")
    ]
    assert [url.partition(",")[0] for url in loads] == ["data:", "data:application/json;base64"]
    assert "model GPT, team vision, user ada</p>" in text
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import", text)
    for heading in ("Step times", "Lateness by rank", "Verdicts", "Cost", "Top kernels", "Copies", "GPUs"):
        assert ("h2", {}) in reader.elements
        assert heading in reader.text
    assert "2026-01-02 03:04 UTC" in reader.text
    assert "25%, registers" in text
    assert "Achieved over all kernels and pauses, by GPM: 31%." in text


def flame_graph(text):
    """The flame graph that a page holds, as speedscope reads it; None without one."""
    urls = [a["href"] for tag, a in Reader(text).elements if tag == "a" and "download" in a]
    return json.loads(b64decode(urls[0].partition(",")[2])) if urls else None


def test_the_page_holds_gpu_time_by_stack_as_a_file_for_speedscope():
    content = flame_graph(page(report_data(), CREATED))
    assert [frame["name"] for frame in content["shared"]["frames"]] == ["main", "attend"]
    assert content["profiles"][0]["weights"] == [1.25]
    assert flame_graph(page(report_data(hot_stacks=[]), CREATED)) is None
    many = [{"place": f"{HOSTILE} {n} {'x' * 1_000} (a.py:{n})", "gpu_s": 1_000 - n} for n in range(1_000)]
    text = page(report_data(hot_stacks=many), CREATED)
    weights = flame_graph(text)["profiles"][0]["weights"]
    assert 100 < len(weights) < 1_000
    assert weights[0] == 1_000, "those with least GPU time are left out"
    assert len(text) < 500_000


def test_causes_lead_to_the_web_page_that_readers_reach_and_else_state_their_section():
    plain = "docs/reference/causes.md, slow copy, pageable."
    with_url = page(report_data(), CREATED, "https://gpu.example")
    assert '<a href="https://gpu.example/cause/slow_copy#pageable">slow copy, pageable</a>' in with_url
    assert plain not in with_url
    assert plain in page(report_data(), CREATED)


def test_an_occupancy_that_is_not_known_is_no_number_and_the_note_states_why():
    unknown = {"occupancy": None, "limited_by": "", "achieved": None}
    assert occupancy(unknown) == "–"
    assert "not known, as CUDA's description of the GPU is missing" in occupancy_note([unknown])
    assert "GPM needs Hopper or later" in occupancy_note([{**unknown, "occupancy": 0.5, "limited_by": "warps"}])


def test_page_escapes_what_a_job_may_be_called():
    data = report_data(job=HOSTILE)
    kernels = [{**data.kernels[0], "short": HOSTILE, "name": HOSTILE}]
    episodes = [{**data.episodes[0], "host": HOSTILE, "evidence": json.dumps({"collective": {"operation": HOSTILE},
                 "longest_ns": 1})}]  # fmt: skip
    copies = [{**data.memcpys[0], "source": HOSTILE}]
    devices = [{**data.devices[0], "host": HOSTILE}]
    data = replace(data, kernels=kernels, episodes=episodes, memcpys=copies, devices=devices, other_runs=[HOSTILE])
    reader, plain = Reader(page(data, CREATED)), Reader(page(report_data(), CREATED))
    assert HOSTILE in reader.text
    assert {tag for tag, _ in reader.elements} <= {tag for tag, _ in plain.elements}
    assert not [k for _, a in reader.elements for k in a if k.startswith("on")]


def test_parts_without_data_have_a_text():
    steps = {"steps": 0, "steps_from": [], "first": 0, "last": 0}
    data = replace(report_data(), steps=steps, step_times=[], lateness=[], kernels=[],
                   families=[], memcpys=[], devices=[], device_times=[], episodes=[], cost=[])  # fmt: skip
    reader = Reader(page(data, CREATED))
    assert not [tag for tag, _ in reader.elements if tag == "svg"]
    for text in ("No steps", "No collectives could be compared", "No kernels", "No copies", "No GPU samples (NVML)"):
        assert text in reader.text


def test_amounts_have_the_unit_that_fits():
    texts = [report_text.amount(gigabytes) for gigabytes in (472.2, 1084, 0.0708, 0.99999, 2.84e-5, 2.56e-7, 0)]
    assert texts == ["472 GB", "1.08 TB", "70.8 MB", "1 GB", "28.4 kB", "256 B", "0 B"]


def test_times_have_the_unit_that_fits():
    assert [report_text.span(s) for s in (16.76, 166.6, 0.0281, 0.9999, 2.5e-6, 40000)] == [
        "16.8 s", "167 s", "28.1 ms", "1 s", "2.5 us", "11.1 h"]  # fmt: skip


def test_a_healthy_job_is_not_drawn_as_dark_as_a_late_one():
    def darkest(late):
        data = report_data(lateness=[{"bin": b, "rank": 0, "late_ms": late} for b in range(2)])
        return heat_map.lateness(data)["layer"][0]["encoding"]["opacity"]["scale"]["domain"][1]

    assert darkest(4.0) == 125.0  # a quarter of the median step
    assert darkest(200.0) == 200.0


def test_kernels_of_one_kind_keep_different_labels():
    names = [f"nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_{end}" for end in ("NNT", "bias_TNT")]
    cut = [report_charts.middle(name) for name in names]
    assert len({*cut}) == 2
    assert all(len(name) <= 42 and name.startswith("nvjet_sm90") for name in cut)
    assert report_charts.middle("short") == "short"


def test_the_legend_names_only_verdicts_that_are_there():
    [rect] = [x for x in report_charts.step_times(report_data())["layer"] if x["mark"].get("type") == "rect"]
    assert rect["encoding"]["color"]["scale"] == {"domain": ["warning"], "range": ["var(--warning)"]}


def test_without_jinja_the_page_fails_and_not_what_prepares_it(monkeypatch):
    """A thread prepares it: its error is a traceback on the terminal."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    prepare()
    with pytest.raises(ModuleNotFoundError, match="jinja2"):
        page(report_data())


def test_ranks_that_are_late_together_are_one_band_behind_the_steps():
    episode = report_data().episodes[0]
    together = [{**episode, "rank": rank} for rank in range(200)]
    whole_job = {**episode, "rank": -1, "first_step": 150, "last_step": 159}
    bands = report_charts.step_times(report_data(episodes=[*together, whole_job]))["layer"][0]["data"]["values"]
    assert [(band["first"], band["end"], band["name"]) for band in bands] == [
        (100, 140, "rank 0 and 199 more"),
        (150, 160, "job"),
    ]


def test_long_jobs_are_drawn_in_hours():
    data = report_data(length_s=100 * 3600.0, device_times=[{**report_data().device_times[0], "second": 7200.0}])
    spec = report_charts.device(data, "util", "%")
    assert spec["encoding"]["x"]["title"] == "h from the start"
    assert spec["data"]["values"][0]["at"] == 2


def test_gpu_samples_without_a_measure_draw_no_empty_chart():
    times = [{**row, "clock_mhz": None} for row in report_data().device_times]
    assert report_charts.device(report_data(device_times=times), "clock_mhz", "MHz") is None


def test_a_wrong_job_or_run_is_reported_with_the_known_ones():
    stored = {"demo": [{"run": "b"}, {"run": "a"}]}

    def query(sql, parameters):
        if sql == queries.LABELS:
            return [{"labels": {"team": f"of {parameters['run']}"}}]
        return stored.get(parameters.get("job"), []) if "job" in parameters else [{"job": name} for name in stored]

    assert find_run(query, "demo", "") == ({"run": "b", "labels": {"team": "of b"}}, ["a"])
    assert find_run(query, "demo", "a") == ({"run": "a", "labels": {"team": "of a"}}, ["b"])
    with pytest.raises(NoSuchRun, match="'demo'"):
        find_run(query, "other", "")
    with pytest.raises(NoSuchRun, match="there are: b, a"):
        find_run(query, "demo", "c")


def test_a_message_lists_some_stored_names_and_the_begin_of_long_ones():
    def query(sql, parameters):
        return [] if "job" in parameters else [{"job": f"\x1b{n}" + "x" * 200_000} for n in range(40)]

    with pytest.raises(NoSuchRun, match=r"there are: '\\x1b0xxx.*… and 30 more") as error:
        find_run(query, "other", "")
    assert len(str(error.value)) < 1_000


def test_names_with_control_characters_are_drawn_and_shown_escaped():
    data, chars = report_data(), "\x00\x1b\x07\x9b\ufffe\uffff\u202e\r"
    kernels = [{**data.kernels[0], "short": f"a{chars}b", "name": f"a{chars}b"}]
    shown = page(replace(data, kernels=kernels, job=f"job{chars}"), CREATED)
    escaped = chars.encode("unicode_escape").decode()
    assert shown.count(f"a{escaped}b") >= 2, "in the chart and in the table"
    assert f"job{escaped}" in shown
    assert not set(chars) & set(shown)


def test_times_at_which_the_job_stood_still_come_first():
    row = {"episode": 1, "hung": 1, "lasts": 0, "reason": "not_called", "note": "Rank 1 has not called AllReduce 41.",
           "started": "2026-01-02 00:00:10.000000000", "seconds": 200}  # fmt: skip
    hangs = [row, {**row, "lasts": 1, "reason": ""}]
    sentences = report_text.summary(report_data(hangs=hangs), web_page="http://web")
    assert sentences[:2] == [
        "The job stood still for 200 s at 2026-01-02 00:00:10 UTC: Rank 1 has not called AllReduce 41."
        " What to do: http://web/cause/hung#not_called",
        "The job has stood still since 2026-01-02 00:00:10 UTC: Rank 1 has not called AllReduce 41.",
    ]
