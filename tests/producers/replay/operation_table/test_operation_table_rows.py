"""A table of operations becomes steps, collectives, and sends between neighbours."""

import numpy as np
import pytest
from support.operation_tables import step_rows, write_table

from drumline.producers.replay.operation_table.job import FIRST_NS, OperationJob
from drumline.schemas.codec import Codec

S = 1_000_000_000


@pytest.fixture
def job(tmp_path):
    return OperationJob(write_table(tmp_path, [*step_rows(16, late_s=2.0), *step_rows(21)]))


def seconds(values):
    return (np.asarray(values) / S).round(6).tolist()


def collectives(job, rank):
    """(communicator, operation, start in s, duration in s) of a rank's first step, in order."""
    batches = [b for _, b in job.batches() if b.topic == "gpu.collective.v1" and b.envelope["rank"] == rank]
    rows = []
    for batch in batches:
        columns, names = batch.columns, batch.strings("operation", "operations")
        for i in np.flatnonzero(columns["step"] == 0):
            start, duration = seconds([columns["start_ns"][i] - FIRST_NS, columns["duration_ns"][i]])
            rows.append((batch.envelope["communicator"], str(names[i]), start, duration))
    return sorted(rows, key=lambda row: row[2])


def test_ranks_and_steps_are_renumbered_and_their_recorded_numbers_kept(job):
    assert job.layout.recorded_ranks == (0, 4, 8, 12)
    assert job.recorded_steps == (16, 21)
    assert {b.envelope["rank"] for _, b in job.batches()} == {0, 1, 2, 3}
    assert {b.envelope["world_size"] for _, b in job.batches()} == {4}
    assert [p.steps["step"].tolist() for p in job.processes] == [[0, 1]] * 4


def test_compute_idle_and_exposed_communication_add_up_to_the_step(job):
    """The rank that is recorded as 8: stage 1 of the late replica."""
    steps = job.processes[2].steps
    assert seconds(steps["gpu_duration_ns"]) == [7.0, 5.0 + 8.6 - 7.0]  # from reduction to reduction
    assert seconds(steps["compute_ns"]) == [3.0, 3.1]  # the optimizer belongs to the step after
    assert seconds(steps["comm_exposed_ns"]) == [3.5, 1.5]
    parts = sum(steps[name] for name in ("compute_ns", "copy_ns", "comm_exposed_ns", "idle_ns"))
    assert parts.tolist() == steps["gpu_duration_ns"].tolist()


def waiting(tmp_path, late_s=(0.0, 2.0)):
    """Jobs whose second stage has no operation until both replicas can go on, without an operation for that wait."""
    rows = []
    for row in [*step_rows(0), *step_rows(1)]:
        late = late_s[row[3]]
        if row[2] == 1 and row[4] == "grads-reduce-scatter":
            row = (*row[:5], 4.9 + max(late_s), 0.1)
        elif row[2] == 1 and row[4] == "backward-compute":
            row = (*row[:6], row[6] + late)
        elif row[2] == 1 and row[4] in ("gc", "backward-send"):
            row = (*row[:5], row[5] + late, row[6])
        elif row[4] == "optimizer":
            row = (*row[:5], row[5] + max(late_s), row[6])
        rows.append(row)
    return OperationJob(write_table(tmp_path, rows))


def test_ranks_that_go_on_together_waited_for_the_last_of_them(tmp_path):
    """The second replica's last operation ends 2 s after the first one's; both go on half a second after that."""
    job = waiting(tmp_path)
    assert seconds(job.unrecorded_ns) == [[0, 0], [0, 0], [2.0, 2.0], [0, 0]]
    assert seconds(job.processes[2].steps["comm_exposed_ns"][:1]) == [3.5]
    assert seconds(job.processes[2].steps["idle_ns"][:1]) == [0.5]


def test_a_rank_that_goes_on_by_itself_was_idle(job):
    assert seconds(job.unrecorded_ns) == [[0, 0]] * 4
    assert seconds(job.processes[2].steps["idle_ns"]) == [0.5, 0.5 + 1.5]


def test_neighbours_of_a_pipeline_share_a_communicator_and_agree_on_the_order(job):
    early, late = collectives(job, 1), collectives(job, 3)
    assert [row[1] for row in early] == ["AllGather", "Send", "Recv", "ReduceScatter"]
    assert [row[1] for row in late] == ["AllGather", "Recv", "Send", "ReduceScatter"]
    assert {early[i][0] for i in (1, 2)} == {late[i][0] for i in (1, 2)}
    assert early[1][0] != collectives(job, 0)[1][0], "of another replica"
    assert early[2][2:] == (1.3, 3.1)


def test_replicas_of_a_stage_share_a_communicator_and_stages_do_not(job):
    groups = [collectives(job, rank)[0][0] for rank in range(4)]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert collectives(job, 0)[-1][0] == groups[0], "gradients are reduced in it, too"
    assert [collectives(job, rank)[-1][3] for rank in range(4)] == [0.1, 2.1, 0.1, 2.1]


def test_garbage_collection_is_known_where_the_table_has_it(job):
    assert [p.steps["gc_ns"].tolist() for p in job.processes] == [[-1, -1], [-1, -1], [0, 0], [0, 0]]


def test_batches_follow_the_schemas(job):
    codec = Codec()
    for _, batch in job.batches():
        assert codec.decode(batch.topic, codec.encode(batch)).rows == batch.rows > 0


def test_a_table_whose_times_count_on_reads_the_same(tmp_path, job):
    rows = [*step_rows(16, late_s=2.0), *step_rows(21)]
    later = [(*row[:5], row[5] + 100.0 * (row[0] == 21), row[6]) for row in rows]
    moved = OperationJob(write_table(tmp_path, later))
    for before, after in zip(job.processes, moved.processes, strict=True):
        assert before.steps["comm_exposed_ns"].tolist() == after.steps["comm_exposed_ns"].tolist()
