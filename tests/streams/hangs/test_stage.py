"""The hang stage as a processor: evaluations that end, restarts, silence, lag, ends of jobs, quarantine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.standing_job import SECOND, Job
from support.tables import apply_batch, open_all, parts_of

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.hangs.stage import HangStage
from drumline.streams.offline import applied

WORLD = {"c0": [0, 1, 2, 3]}
MINUTE = 60


def pause(job, seconds, rank=0):
    """Rank 0 evaluates or saves a checkpoint while the others wait."""
    job.ranks[rank].host_stalls = True
    job.run_for(seconds)
    job.ranks[rank].host_stalls = False
    job.run_for(20)


def test_evaluations_of_one_rank_are_standing_name_it_and_no_page():
    job = Job(WORLD).run_for(20)
    for _ in range(20):
        pause(job, 90)
    assert job.states == ["standing", "moving"] * 20
    assert {row["rank"] for rows in job.rows for row in rows} == {-1, 0}
    assert [rows[0]["episode"] for rows in job.rows[::2]] == list(range(1, 21))
    long = Job(WORLD, hung_ns=600 * SECOND).run_for(20)
    pause(long, 6 * MINUTE)
    assert long.states == ["standing", "moving"]


def test_a_job_that_goes_on_takes_back_the_names():
    job = Job(WORLD).run_for(20)
    pause(job, 130, rank=2)
    assert job.states == ["standing", "hung", "moving"]
    assert [(row["rank"], row["reason"]) for row in job.rows[-1]] == [(-1, ""), (2, "")]
    assert [rows[0]["revision"] for rows in job.rows] == [0, 1, 2]
    assert len({rows[0]["start_ns"] for rows in job.rows}) == 1


def test_a_moving_job_publishes_nothing_however_long_its_steps_are():
    job = Job(WORLD).run_for(20)
    for rank in job.ranks.values():
        rank.host_stalls = True  # nobody waits: all compute
    job.run_for(100)
    assert job.rows == []
    job.run_for(60)
    assert job.states == ["standing"]
    assert job.rows[-1][0]["reason"] == "no_operation"


@pytest.mark.parametrize("state", ["exited", "killed"])
def test_a_job_whose_processes_have_ended_does_not_stand_still(state):
    job = Job(WORLD).run_for(20)
    for rank in job.ranks.values():
        rank.state = state
    job.run_for(200)
    assert job.rows == []


def test_a_job_that_is_killed_while_it_hangs_is_over():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(130)
    for rank in job.ranks.values():
        rank.state = "killed"
    job.run_for(3)
    assert job.states == ["standing", "hung", "over"]
    assert [(row["rank"], row["reason"]) for row in job.rows[-1]] == [(-1, ""), (1, "")]


def test_a_hung_job_that_is_ended_rank_by_rank_keeps_its_reason_and_takes_back_all_names():
    job = Job(WORLD).run_for(20)
    job.ranks[1].plan = [("c0", ("AllReduce", "float32", 2_000))]
    job.run_for(130)
    assert {rank: reason for rank, (reason, *_) in job.named.items()} == {0: "mismatch", 1: "mismatch"}
    for number in (2, 1, 3, 0):
        job.ranks[number].state = "killed"
        job.run_for(5)
    assert job.states == ["standing", "hung", "over"]
    assert [(row["rank"], row["reason"]) for row in job.rows[-1]] == [(-1, ""), (0, ""), (1, "")]


def test_a_rank_that_ends_while_the_others_go_on_to_wait_for_it_has_ended():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(15)
    job.ranks[1].state = "killed"
    job.run_for(25)
    assert job.named == {1: ("not_called", "AllReduce", 21)}
    job.run_for(10)
    assert job.states == ["standing", "standing"]
    assert job.named == {1: ("gone", "AllReduce", 21)}


def test_a_job_whose_agents_fall_silent_is_over_after_a_minute_and_not_hung():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(15)
    for rank in job.ranks.values():
        rank.silent = True
    job.run_for(90)
    assert job.states == ["standing", "over"]
    assert job.rows[-1][0]["reason"] == "silent"


def test_a_host_that_dies_is_insufficient_data_for_those_that_wait_for_it():
    job = Job(WORLD).run_for(20)
    job.ranks[2].silent = job.ranks[3].silent = True
    job.ranks[2].host_stalls = job.ranks[3].host_stalls = True
    job.run_for(40)
    assert job.named == {}
    assert job.rows[-1][0]["reason"] == "insufficient_data"


def test_a_restarted_worker_goes_on_with_what_is_published():
    job = Job(WORLD).run_for(20)
    job.ranks[1].state = "killed"
    job.run_for(20)
    job.restart()
    job.run_for(120)
    assert job.states == ["standing", "hung"]
    assert job.named == {1: ("gone", "AllReduce", 21)}


def test_what_was_not_acknowledged_is_sent_again_with_the_same_number():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls, job.unacknowledged = True, True
    job.run_for(15)
    job.restart()
    job.run_for(45)
    assert len(job.rows) >= 2
    assert {(rows[0]["state"], rows[0]["episode"], rows[0]["revision"]) for rows in job.rows} == {("standing", 1, 0)}


def test_lag_makes_no_process_silent_and_hides_no_standstill():
    job = Job(WORLD, lag=True).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(12)
    for rank in job.ranks.values():
        rank.silent = True  # their records wait in Kafka
    job.run_for(200)
    assert job.states == ["standing"]
    assert list(job.named) == [1]


def test_repeated_and_late_records_change_nothing():
    job = Job(WORLD).run_for(20)
    old = job.batch(job.ranks[1])
    job.ranks[1].host_stalls = True
    job.run_for(30)
    before = job.named
    for offset in range(3):
        job.take(apply_batch(job.stage, old, offset, job.now))
    job.run_for(5)
    assert job.named == before
    assert job.stage.duplicates == 3


def test_state_is_deleted_with_the_run_and_bounded_by_its_processes():
    job = Job(WORLD).run_for(20)
    for rank in job.ranks.values():
        rank.state = "exited"
    job.run_for(5)
    assert len(job.store) == 4 + 1, "processes that ended, and which attempt they are of"
    for _ in range(2):
        job.now += 2 * 3_600 * SECOND
        job.stage.on_tick(job.now, True)
    assert job.store == {}
    assert job.stage.states == {}


def test_one_of_hundreds_of_ranks_is_named():
    ranks = list(range(300))
    job = Job({"c0": ranks}).run_for(1)
    job.ranks[7].host_stalls = True
    job.run_for(1)
    for rank in job.ranks.values():
        rank.moved = job.now - 11 * SECOND
    for _ in range(6):
        job.now += SECOND
        job.publish()
        job.take(job.stage.on_tick(job.now, True))
    assert list(job.named) == [7]
    assert job.rows[-1][0]["waiting"] == 299


def test_a_process_that_is_stopped_while_the_job_stands_still_changes_the_reason():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(12)
    job.ranks[1].state = "stopped"
    job.run_for(2)
    assert job.states == ["standing", "standing"]
    assert job.named == {1: ("stopped", "AllReduce", 21)}


def test_a_merged_record_of_heartbeats_changes_nothing_and_fails_nothing():
    job, codec = Job(WORLD).run_for(20), Codec()
    [before] = [dict(state.processes) for state in job.stage.states.values()]
    values = []
    for rank in job.ranks.values():
        batch = job.batch(rank)
        values.append(codec.encode(Batch(batch.topic, {**batch.envelope, "rows": 0}, {})))
    parts = parts_of(codec, Topic.PROGRESS, codec.merge(Topic.PROGRESS, values)).merged
    assert (parts.parts, parts.rows) == (4, 0)
    assert applied(job.stage, parts, np.arange(parts.parts), job.now) == []
    assert not job.stage.quarantine
    [after] = [state.processes for state in job.stage.states.values()]
    assert after == before


def contents(batches):
    return [(batch.envelope, {name: column.tolist() for name, column in batch.columns.items()}) for batch in batches]


@pytest.mark.parametrize("ends", [False, True])
def test_records_of_many_seconds_give_the_results_of_their_batches(ends):
    """A job moves, stands still, goes on and stands still again; a rank may end. Records are of 2 ranks."""
    job, codec = Job(WORLD), Codec()
    single, together = HangStage({}, job.config), HangStage({}, job.config)
    out, offset, counts = [], 0, []
    for seconds in (4, 8, 4, 30, 12, 4, 30):
        waiting = {0: [], 1: []}
        for _ in range(seconds):
            job.now += SECOND
            job.move()
            for rank in job.ranks.values():
                if not rank.silent:
                    waiting[rank.number // 2].append(job.batch(rank))
                    rank.silent = rank.state in ("killed", "exited")
        if seconds == 4:
            job.ranks[2].host_stalls = not job.ranks[2].host_stalls
        if seconds == 12 and ends:
            job.ranks[3].state = "exited"
        batches = [batch for batch_list in waiting.values() for batch in batch_list]
        values = [codec.merge(Topic.PROGRESS, [*map(codec.encode, batch_list)]) for batch_list in waiting.values()]
        table = codec.merged_table(Topic.PROGRESS, [open_all(codec, Topic.PROGRESS, [value])[0] for value in values])
        of_both = [
            [result for at, batch in enumerate(batches) for result in apply_batch(single, batch, offset + at, job.now)],
            applied(together, table, offset + np.arange(table.parts), job.now),
        ]
        offset += len(batches)
        counts.append(len(batches))
        for results, stage in zip(of_both, (single, together), strict=True):
            results += stage.on_tick(job.now, True)
        assert contents(of_both[0]) == contents(of_both[1])
        out += of_both[0]
    assert {batch.envelope["state"] for batch in out} >= {"standing", "moving"}
    [states] = zip(single.states.values(), together.states.values(), strict=True)
    assert states[0].busy == states[1].busy
    assert [p.sequence for p in states[0].processes.values()] == [p.sequence for p in states[1].processes.values()]
    assert applied(together, table, np.arange(table.parts), job.now) == []
    assert together.duplicates == counts[-1]


def silent_in(rank, ranks=4, state="silent", host="10.0.0.2"):
    entry = {"rank": rank, "host": host, "pid": 40 + rank, "state": state}
    return json.dumps({"ranks": ranks, "silent": [entry], "silent_ranks": 1})


def test_what_ras_states_is_noted_beside_the_rank_that_progress_names():
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls = True
    job.run_for(15)
    assert job.named == {1: ("not_called", "AllReduce", 21)}
    job.ranks[0].ras = {"c0": silent_in(1)}
    job.run_for(3)
    assert job.named == {1: ("not_called", "AllReduce", 21)}
    stated = "NCCL's RAS on host-0 gets no answer of rank 1 (pid 41 on 10.0.0.2) in communicator c0."
    assert job.rows[-1][0]["note"].endswith(stated)
    assert job.states == ["standing", "standing"]
    job.run_for(30)
    assert len(job.states) == 2, "the same answer is no news"


@pytest.mark.parametrize(("state", "reason"), [("silent", "silent"), ("gone", "gone")])
def test_a_rank_of_which_nothing_is_known_is_named_by_what_ras_states(state, reason):
    job = Job(WORLD).run_for(20)
    job.ranks[2].host_stalls = job.ranks[3].host_stalls = True
    job.ranks[2].silent = job.ranks[3].silent = True  # their host is lost
    job.run_for(40)
    assert job.named == {}
    job.ranks[0].ras = {"c0": silent_in(3, state=state)}
    job.run_for(3)
    assert job.named == {3: (reason, "AllReduce", 21)}
    assert [row["host"] for row in job.rows[-1]] == ["", "host-1"]


def test_a_rank_without_records_is_named_where_ras_counts_fewer_calls():
    job = Job(WORLD).run_for(20)
    job.ranks[3].silent = job.ranks[3].host_stalls = True
    behind = {"rank": 3, "host": "h", "pid": 7, "operation": "AllReduce", "called": 20, "of": 21, "total": 20}
    job.ranks[0].ras = {"c0": json.dumps({"ranks": 4, "behind": [behind], "behind_ranks": 1})}
    job.run_for(40)
    assert job.named == {3: ("not_called", "AllReduce", 21)}
    assert "counts 20 of 21 AllReduce of rank 3 (pid 7 on h)" in job.rows[-1][0]["note"]


@pytest.mark.parametrize("total", [{}, {"total": 21}, {"total": -1}])
def test_a_rank_that_called_as_many_operations_is_noted_and_not_named(total):
    job = Job(WORLD).run_for(20)
    job.ranks[3].silent = job.ranks[3].host_stalls = True
    behind = {"rank": 3, "host": "h", "pid": 7, "operation": "AllReduce", "called": 20, "of": 21, **total}
    job.ranks[0].ras = {"c0": json.dumps({"ranks": 4, "behind": [behind], "behind_ranks": 1})}
    job.run_for(40)
    assert job.named == {}
    assert "counts 20 of 21 AllReduce of rank 3" in job.rows[-1][0]["note"]


def test_the_rank_of_a_member_is_not_taken_for_the_jobs_where_those_of_others_differ():
    job = Job({"c0": [1, 0, 3, 2]}).run_for(20)
    job.ranks[2].host_stalls = job.ranks[2].silent = True
    job.ranks[0].ras = {"c0": silent_in(3)}
    job.run_for(40)
    assert job.named == {}
    assert "gets no answer of its rank 3" in job.rows[-1][0]["note"]


def test_both_sides_of_a_cut_link_state_the_other_and_no_rank_is_named():
    job = Job(WORLD).run_for(20)
    for rank in job.ranks.values():
        rank.gpu_stalls = True
        rank.ras = {"c0": silent_in(0 if rank.number >= 2 else 2)}
    job.run_for(30)
    assert job.named == {}
    assert "RAS on host-0 gets no answer of rank 2" in job.rows[-1][0]["note"]
    assert "RAS on host-1 gets no answer of rank 0" in job.rows[-1][0]["note"]


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"silent": 3}', '{"silent": [{}]}', '{"behind": [{"rank": "x"}]}',
                                  '{"silent": {"rank": 1}}', "[" * 5_000, silent_in(10**12), silent_in(-1),
                                  '{"silent": [{"rank": 1e999, "pid": 1, "host": "h"}]}', silent_in(4),
                                  silent_in(1).replace("41", "1e999")])  # fmt: skip
def test_what_is_no_answer_of_ras_changes_nothing(text):
    job = Job(WORLD).run_for(20)
    job.ranks[1].host_stalls, job.ranks[0].ras = True, {"c0": text}
    job.run_for(15)
    assert job.named == {1: ("not_called", "AllReduce", 21)}
    assert "RAS" not in job.rows[-1][0]["note"]
