"""`drumline evaluate --curve`: one page of all recordings, the same as JSON; refusals before anything is measured."""

import json
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app
from drumline.lab.evaluate.curve.curve_page import MARK
from drumline.producers.replay.published import ROWS

PUBLISHED = Path(__file__).parents[3] / "data" / "published"
QUICK = ["--windows", "20", "--faults", "0"]


def run(*args):
    return CliRunner().invoke(app, ["--curve", *map(str, args)])


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    path = tmp_path_factory.mktemp("curve") / "curve.md"
    result = run(
        PUBLISHED / "link", PUBLISHED / "gpu-light", *QUICK, "--json", "--jobs", 1, "--page", path, "--note", "A note."
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["curves"], path.read_text()


def test_a_recorded_fault_has_its_true_cost_and_the_steps_until_its_name(link):
    [curve, shared] = link[0]
    [fault] = curve["faults"]
    assert (fault["fault"]["name"], fault["class"], fault["beside"]) == ("slow_link:7e8", "> 40 %", "quiet")
    assert fault["cost"]["low"] < fault["cost"]["cost"] < fault["cost"]["high"]
    assert fault["recall"]["steps"] == 19
    assert shared["faults"][0]["cost"] is None  # no healthy step beside it
    assert shared["closeness"] is None


def test_a_job_of_one_rank_is_not_evaluated_and_the_json_gives_the_reason(tmp_path):
    recording = tmp_path / "alone"
    recording.mkdir()
    with lzma.open(PUBLISHED / "link" / ROWS, "rt") as file:
        lines = [json.loads(line) for line in file]
    kept = [line for line in lines if line["envelope"]["rank"] == 0]
    with lzma.open(recording / ROWS, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
    (recording / "manifest.json").write_text((PUBLISHED / "link" / "manifest.json").read_text())
    result = run(recording, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    [curve] = json.loads(result.stdout)["curves"]
    assert curve["coverage"]["evaluated"] == 0
    assert curve["coverage"]["reasons"] == {"ranks_missing": curve["coverage"]["windows"]}
    assert curve["injected"] == []


def test_drawn_windows_are_counted_with_their_bound(link):
    curve = link[0][0]
    assert (curve["resampled"]["windows"], curve["resampled_coverage"]["evaluated"]) == (20, 20)
    assert curve["resampled"]["upper_bound_per_1000"] == pytest.approx(1000 * (1 - 0.05 ** (1 / 20)))
    assert curve["closeness"]["step_p95"] < 0.01


def test_the_page_has_a_section_of_each_recording_and_the_note(link):
    page = link[1]
    assert page.startswith(MARK)
    assert "**A note.**" in page
    assert "## link, light" in page
    assert "## gpu-light, light" in page


def test_a_page_of_something_else_is_not_replaced(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# By hand\n")
    result = run(PUBLISHED / "link", *QUICK, "--page", path)
    assert result.exit_code == 2
    assert path.read_text() == "# By hand\n"


def test_options_of_one_tier_are_refused_with_curves():
    for option in ("--light", "--compare"):
        assert run(PUBLISHED / "link", option).exit_code == 2


def test_several_recordings_need_the_option():
    result = CliRunner().invoke(app, [str(PUBLISHED / "link"), str(PUBLISHED / "cpu")])
    assert result.exit_code == 2
    assert "--curve" in result.output


def test_a_folder_of_recordings_is_named_with_those_that_it_holds():
    result = run(PUBLISHED, *QUICK)
    assert result.exit_code == 2
    assert "host-kinds" in result.output
