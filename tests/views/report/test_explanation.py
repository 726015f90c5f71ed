"""`drumline explain`: what it states of a stored job, and where there is nothing is to be explained."""

import pytest
from support.report_data import report_data

from drumline.cli.query.explain import _wrapped
from drumline.infra.guidance.causes import CAUSES
from drumline.views.report import queries
from drumline.views.report.data import NoSuchRun
from drumline.views.report.explanation import (
    _explanation,
    also_late_line,
    explain,
    hang_lines,
    place_of,
    require_rank,
)


def test_one_screen_states_who_why_what_it_cost_and_what_to_do():
    [row] = report_data().episodes
    lines = _explanation("job's", "r", [row], 100.0, 7).lines()
    text = "\n".join(lines)
    assert lines[0].startswith("Rank 3 (node-b): ")
    assert "slow copy, pageable" in text
    assert "pin_memory=True" in text
    assert "drumline sql around-verdict --job 'job'\"'\"'s' --run r --rank 3" in text
    assert "escalate  to the owner of the job" in text
    assert len(lines) <= 11


def test_commands_of_the_guidance_name_the_job_and_the_process():
    row = {**report_data().episodes[0], "cause": "host_stall", "detail": ""}
    check = _explanation("job's", "r", [row], 100.0, 4711).check
    assert "`drumline sql hot-stacks --job 'job'\"'\"'s'`" in check
    assert "`py-spy dump --pid 4711`" in check
    assert "PID" in _explanation("j", "r", [row], 100.0, 0).check, "no process is known"


def test_the_line_where_a_sampled_rank_was_is_stated():
    [row] = report_data().stacks
    assert place_of(row) == (
        "collate (/job/train.py:88), 90% of the time (a healthy rank: 10%); waits for the GIL, which is held by "
        "tokenizer: encode (/job/text.py:7)"
    )
    assert place_of({**row, "peers": 0, "finding": "", "at": "a\x1b[31m"}) == "a\\x1b[31m, 90% of the time"


def test_a_job_that_stands_still_is_explained_first():
    row = {"reason": "not_called", "started": "2026-01-02 03:04:05", "lasts": 1, "seconds": 7, "note": "rank 2 ..."}
    sentence, check, act, escalate = hang_lines([row], "job's")
    assert sentence == "The job has stood still since 2026-01-02 03:04:05 UTC: rank 2 ..."
    assert "py-spy dump" in check
    assert "checkpoint" in act
    assert escalate == "  escalate  to the owner of the job"


def test_a_rank_that_does_not_exist_is_no_healthy_rank():
    with pytest.raises(NoSuchRun, match=r"^run r has no rank 9; its ranks are 0 to 3, 6$"):
        require_rank([0, 1, 2, 3, 6], 9, "r")
    require_rank([0, 1], 1, "r")
    require_rank([], 7, "r")


def late_ranks(count):
    """A query whose run has so many late ranks, the most expensive first."""
    data = report_data()
    [row] = data.episodes
    answers = {
        queries.RUNS: [data.run], queries.LABELS: [{"labels": {"team": "vision"}}],
        queries.WINDOWS: [data.windows], queries.HANGS: [], queries.STACKS: data.stacks,
        queries.EPISODES: [{**row, "rank": 3 + n, "gpu_seconds": 900.0 - n} for n in range(count)],
    }  # fmt: skip
    return lambda sql, _: answers.get(sql, [])


def test_one_rank_is_explained_and_all_others_are_named():
    explained = explain(late_ranks(14), "my job", "", None, most=1)
    assert [text.rank for text in explained.texts] == [3]
    line = also_late_line("my job", explained)
    assert line.startswith("Late too: rank 4 (899.0 GPU-seconds), rank 5 ")
    assert "rank 13 (890.0 GPU-seconds) and 3 more. `drumline explain 'my job' --rank 4` shows one" in line
    everything = explain(late_ranks(14), "my job", "", None, most=None)
    assert (len(everything.texts), everything.also_late) == (14, [])


def test_more_late_ranks_than_are_read_are_at_least_so_many():
    explained = explain(late_ranks(queries.MOST_EPISODES), "my job", "", None, most=1)
    assert " and at least 189 more. " in also_late_line("my job", explained)


@pytest.mark.parametrize("entry", CAUSES, ids=lambda entry: entry.name)
def test_a_rank_fits_one_screen_of_80_columns(entry):
    query = late_ranks(14)
    [row] = report_data().episodes
    lines = _explanation("demo", "r", [{**row, "cause": entry.cause, "detail": entry.detail}], 100.0, 7).lines()
    lines += [f"  changed   {'text ' * 20}"] * 3 + [f"  python    {'text ' * 30}"]
    lines += [also_late_line("demo", explain(query, "demo", "", None, most=1))]
    shown = [part for line in lines for part in _wrapped(line, 80).split("\n")]
    assert len(shown) < 40
    assert max(len(line) for line in shown if not line.startswith("  next ")) <= 80
