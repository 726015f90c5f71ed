"""Deep windows: steps that lie ahead of all ranks, and what the answers add up to."""

import time
from dataclasses import replace

import pytest
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.producers.ipc.control import ControlRequest, ProcessPlace
from drumline.schemas.control import encode
from drumline.views.control import windows
from drumline.views.control.ranks import BadRankList, ranks_of
from drumline.views.control.windows import (
    CannotCapture,
    culprit,
    is_complete,
    kinds_of,
    short_of_steps,
    states,
    window_of_seconds,
    window_of_steps,
)

NOW, S = 10**18, 10**9


def answering(**rows):
    by_sql = {getattr(windows, name): answer for name, answer in rows.items()}
    return lambda sql, values: by_sql[sql]


def test_steps_begin_when_all_agents_have_had_time_to_switch_on():
    query = answering(NEWEST=[{"last": 100, "step_ns": S // 10, "age_s": 1.0}])
    window = window_of_steps(query, "j", "r", [3, 7], 20, NOW)
    assert (window.first_step, window.last_step, window.ranks) == (161, 180, (3, 7))
    assert window.until_ns - NOW == 31_200_000_000, "twice the time of 81 steps, and 15 s"
    encode(window)
    slow = answering(NEWEST=[{"last": 100, "step_ns": 40 * S, "age_s": 5.0}])
    assert window_of_steps(slow, "j", "r", [], 1, NOW).first_step == 102
    with pytest.raises(CannotCapture, match="may take longer than 10 minutes, the most: name fewer --steps"):
        window_of_steps(slow, "j", "r", [], 20, NOW)
    with pytest.raises(CannotCapture, match="does not run now, or not in steps"):
        window_of_steps(answering(NEWEST=[]), "j", "r", [], 20, NOW)


def test_seconds_need_no_steps_and_a_name_is_no_pattern():
    window = window_of_seconds("a*[b]", "r", [], 5.0, NOW)
    assert (window.first_step, window.last_step, window.until_ns - NOW) == (-1, -1, 10 * S)
    with pytest.raises(CannotCapture):
        window_of_seconds("j", "r", [], 600, NOW)
    fields = {name: getattr(window, name) for name in ControlRequest.__dataclass_fields__}
    assert ControlRequest(**fields).concerns(ProcessPlace("a*[b]", "r", 0, "h"))
    assert not ControlRequest(**fields).concerns(ProcessPlace("axb", "r", 0, "h"))


def test_the_culprit_is_captured_beside_a_healthy_rank_of_its_communicator_or_host():
    def row(rank, host, is_late=0, peers=()):
        return {"rank": rank, "host": host, "is_late": is_late, "lost_ns": is_late, "peers": list(peers)}

    late = [row(5, "b", 2), row(2, "a", 1), row(0, "a"), row(4, "b"), row(6, "b")]
    assert culprit(answering(CULPRIT=late), "j", "r") == [4, 5]
    assert culprit(answering(CULPRIT=[row(5, "b", 2, [0, 2]), *late[1:]]), "j", "r") == [0, 5]
    assert culprit(answering(CULPRIT=[row(5, "b", 2)]), "j", "r") == [5]
    for rows in ([], [row(0, "a")]):
        with pytest.raises(CannotCapture, match="no rank is late"):
            culprit(answering(CULPRIT=rows), "j", "r")


def test_a_rank_has_the_last_answer_of_its_processes_to_this_window_and_its_rows():
    window = window_of_seconds("j", "r", [0, 1, 2], 5.0, NOW)
    key = window.key
    query = answering(
        PROCESSES=[
            {"rank": 0, "host": "a", "answers": [f"accepted {key}", f"running {key}"]},
            {"rank": 1, "host": "a", "answers": [f"rejected {key}: its policy is light: never", "done other"]},
            {"rank": 2, "host": "a", "answers": ["", "done other"]},
            {"rank": 3, "host": "a", "answers": [f"done {key}"]},
        ],
        ROWS=[{"rank": 0, "kernels": 7, "copies": 1, "steps": 2, "stacks": 0}],
    )
    first, second, third = states(query, window, "j", "r")
    assert (first.answer, first.kernels, first.steps) == ("running", 7, 2)
    assert (second.answer, second.reason, second.kernels) == ("rejected", "its policy is light: never", 0)
    assert (third.answer, third.reason) == ("", "")


def test_a_window_is_complete_when_all_ranks_are_done_and_their_rows_are_stored():
    def state(rank, answer, is_whole=True):
        return windows.RankState(rank, "h", answer, "", 5, 0, 0, 0, is_whole)

    done = [state(0, "done"), state(1, "rejected", is_whole=False)]
    assert is_complete(done, [0, 1], 0.0)
    assert not is_complete(done, [0, 1, 2], 99.0)
    late = [state(0, "done", is_whole=False)]
    assert not is_complete(late, [0], windows.COLLECTED_S - 0.1), "a sink may hold its rows"
    assert is_complete(late, [0], windows.COLLECTED_S)
    assert not is_complete([state(0, "running")], [0], 99.0)
    assert not is_complete([], [], 0.0)


def test_a_rank_that_has_kernels_of_fewer_steps_than_were_wanted_is_named():
    query = answering(NEWEST=[{"last": 100, "step_ns": S // 10, "age_s": 1.0}])
    window = window_of_steps(query, "j", "r", [], 20, NOW)
    all_of_it, late, none = (windows.RankState(rank, "h", "done", "", kernels, 0, steps, 0)
                             for rank, kernels, steps in ((0, 90, 20), (1, 80, 13), (2, 0, 0)))  # fmt: skip
    assert short_of_steps([all_of_it, late, none], window) == [late]
    assert short_of_steps([late], window_of_seconds("j", "r", [], 5.0, NOW)) == [], "no step was wanted"


def test_ranks_are_written_as_numbers_and_spans():
    assert ranks_of("") == []
    assert ranks_of("7, 0-2,1") == [0, 1, 2, 7]
    for text in ("x", "3-1", "-1", "0-99999", ","):
        with pytest.raises(BadRankList, match="for example: 0,3 or 0-7"):
            ranks_of(text)


def test_samples_of_the_gpu_are_of_one_named_rank_and_stand_beside_kernels_only():
    assert kinds_of("kernels, pc", [3]) == {"kernels", "pc"}
    assert kinds_of("kernels,launches,stacks", []) == {"kernels", "launches", "stacks"}
    for text, ranks, reason in (
        ("kernels,pc", [], "name its rank"), ("kernels,pc", [3, 7], "name its rank"),
        ("kernels,stacks,pc", [3], "beside kernels only"), ("pc", [3], "kernels, or kernels,launches"),
        ("kernels,sass", [3], "or kernels,pc"),
    ):  # fmt: skip
        with pytest.raises(CannotCapture, match=reason):
            kinds_of(text, ranks)


@pytest.mark.stack
def test_a_step_of_the_window_counts_where_a_kernel_of_its_rank_begins_in_it(clean_stack):
    migrated_database.create(clean_stack)
    client = clickhouse.connect(clean_stack, database=clean_stack.clickhouse.database)
    begun = time.time_ns() - 60 * S  # older rows would expire
    at = f"fromUnixTimestamp64Nano({begun} + toInt64(%s * 1e9))"
    for sql in (
        # Steps 0 to 29 of a second each; the window has 10 to 19.
        "INSERT INTO steps (job, run, rank, step, start, duration_ns) SELECT 'j', 'r', number % 3, intDiv(number, 3), "
        f"{at % 'intDiv(number, 3)'}, 900000000 FROM numbers(90)",
        # Two kernels a step: of rank 0 from step 8 on, of rank 1 from 13 on; of rank 2 only between the steps.
        "INSERT INTO kernels (job, run, rank, name, start, duration_ns) SELECT 'j', 'r', intDiv(number, 50), 'k', "
        f"{at % '(8 + intDiv(number % 50, 2) + (number % 2) * 0.4)'}, 1000 FROM numbers(100) "
        "WHERE number < 50 OR number >= 60",
        "INSERT INTO kernels (job, run, rank, name, start, duration_ns) SELECT 'j', 'r', 2, 'k', "
        f"{at % '(number + 0.95)'}, 1000 FROM numbers(30)",
    ):
        clickhouse.command(client, sql)
    window = replace(window_of_seconds("j", "r", [], 5.0, begun), first_step=10, last_step=19)
    processes = answering(PROCESSES=[{"rank": rank, "host": "h", "answers": []} for rank in range(3)])

    def query(sql, values):
        return clickhouse.rows(client, sql, values) if sql == windows.ROWS else processes(sql, values)

    result = states(query, window, "j", "r")
    client.close()
    assert [(state.rank, state.steps, state.is_whole) for state in result] == [
        (0, 10, True),
        (1, 7, True),
        (2, 0, True),
    ]
    assert [state.rank for state in short_of_steps(result, window)] == [1, 2]
