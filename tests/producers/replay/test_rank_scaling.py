"""A recording as a job of more ranks: faults only in the first copy, communicators that fit together."""

import numpy as np
import pytest
from support.activity_builder import ALL_REDUCE, GEMM, Recorder, lockstep

from drumline.producers.replay.rank_scaling import BadRanks
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.trace import load_manifest

PHASES = [
    {"phase": "healthy", "fault_ranks": [], "first_step": 0, "last_step": 3},
    {"phase": "slow", "fault_ranks": [0], "first_step": 4, "last_step": 7},
    {"phase": "slow", "fault_ranks": [1], "first_step": 8, "last_step": 11},
]
EXTRA = 50_000


@pytest.fixture
def folder(tmp_path):
    """Two ranks; rank 0 is slow in steps 4-7, rank 1 in 8-11."""
    job = lockstep(2, 12, {0: (4, 7, EXTRA), 1: (8, 11, EXTRA)})
    return job.write(tmp_path / "job", ranks=2, phases=PHASES)


def recording(folder, ranks, phases=True):
    return RecordedJob(folder, ranks=ranks, manifest=load_manifest(folder, phases=phases))


def by_rank(batches, topic, column):
    rows = {}
    for o in batches:
        if o.batch.topic == topic:
            rows.setdefault(o.batch.envelope["rank"], []).extend(o.batch.columns[column].tolist())
    return rows


def test_only_the_first_copy_has_the_faults(folder):
    batches = list(recording(folder, 6).batches("r"))
    compute = by_rank(batches, "gpu.step.v1", "compute_ns")
    slow = {rank: [i for i, ns in enumerate(values) if ns > 100_000] for rank, values in compute.items()}
    assert slow == {0: [4, 5, 6, 7], 1: [8, 9, 10, 11], 2: [], 3: [], 4: [], 5: []}


def test_without_phases_the_rank_that_waited_most_is_repeated(folder):
    batches = list(recording(folder, 4, phases=False).batches("r"))
    kernels = by_rank(batches, "gpu.kernel.v1", "duration_ns")
    assert kernels[2] == kernels[3]
    assert kernels[2] in (kernels[0], kernels[1])


def test_copies_have_as_many_collectives_in_each_step_as_the_others(folder):
    batches = list(recording(folder, 7).batches("r"))
    steps = by_rank(batches, "gpu.collective.v1", "step")
    assert sorted(steps) == list(range(7))
    for values in steps.values():
        assert np.unique(values, return_counts=True)[1].tolist() == [1] * 12


def test_replayed_ranks_have_identities_of_their_own(folder):
    batches = list(recording(folder, 5).batches("r"))
    first = [o.batch.envelope for o in batches if o.batch.topic == "gpu.process.v1"]
    assert [e["rank"] for e in first] == [0, 1, 2, 3, 4]
    assert {e["world_size"] for e in first} == {5}
    for name in ("process_id", "gpu_uuid"):
        assert len({e[name] for e in first}) == 5
    assert len({(e["host"], e["pid"]) for e in first}) == 5
    assert len({(e["host"], e["local_rank"]) for e in first}) == 5


def test_the_first_copy_is_the_recording(folder):
    plain = by_rank(recording(folder, 2).batches("r"), "gpu.kernel.v1", "start_ns")
    many = by_rank(recording(folder, 6).batches("r"), "gpu.kernel.v1", "start_ns")
    assert {rank: many[rank] for rank in (0, 1)} == plain


def test_the_worlds_communicator_grows_and_small_ones_are_copied(tmp_path):
    job = Recorder()
    now = 1_000_000
    for rank in range(4):  # world 1; pairs {0,1} = 2 and {2,3} = 3
        job.range("step 0", now, now + 900, rank=rank)
        for i, communicator in enumerate((1, 2 + rank // 2)):
            job.call("ncclAllReduce", now + 10 * (i + 1), rank=rank, communicator=communicator)
            job.kernel(ALL_REDUCE, now + 100 * (i + 1), now + 100 * (i + 1) + 50, rank=rank)
        job.kernel(GEMM, now + 400, now + 500, rank=rank)
    batches = list(recording(job.write(tmp_path / "mesh", ranks=4), 10).batches("r"))
    members = {}
    for o in batches:
        if o.batch.topic == "gpu.collective.v1" and o.batch.rows:
            members.setdefault(o.batch.envelope["communicator"], set()).add(o.batch.envelope["rank"])
            assert o.key == f"mesh:{o.batch.envelope['communicator']}"
    assert members.pop("0000000000000001") == set(range(10))
    assert sorted(map(sorted, members.values())) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert {"0000000000000002", "0000000000000003"} < set(members)
    again = {o.key for o in recording(tmp_path / "mesh", 10).batches("another run")}
    assert {f"mesh:{name}" for name in members} <= again  # the same copies have the same names in every run


def test_fewer_ranks_than_recorded_is_refused(folder):
    with pytest.raises(BadRanks, match="cannot be made smaller"):
        recording(folder, 1)
