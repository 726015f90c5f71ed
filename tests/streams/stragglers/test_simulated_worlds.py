"""Simulated worlds (tests/support/worlds): what they do is exact, and the verdicts on them are right in both tiers."""

from __future__ import annotations

import numpy as np
import pytest
from support.labs.attribution import evaluated, named_ranks
from support.worlds.durations import recorded_weights
from support.worlds.engine import run, true_share
from support.worlds.layout import Exchange, Pass, Slowed, World, schedule
from support.worlds.rows import world_batches

from drumline.streams.core.thresholds import StragglerConfig

CONFIG = StragglerConfig(window_steps=4)
PIPELINE = World(pipeline=4, data=2, microbatches=8)
MESHES = {
    "tp x dp": World(data=2, tensor=4),
    "pp x dp": World(pipeline=4, data=2, tied_embeddings=True, loss_all_reduce=True),
    "pp x dp x tp x ep": World(pipeline=2, data=4, tensor=2, expert=2, microbatches=4, norm_all_reduce=True),
}
TIERS = pytest.mark.parametrize("light", [False, True], ids=["cupti", "light"])
WORLDS = pytest.mark.parametrize("world", MESHES.values(), ids=MESHES.keys())


def operations(world, light=False, steps=2):
    """(rank, communicator, step, ordinal) -> (operation, start, end) of all ranks."""
    result = {}
    for _, batch in world_batches(run(world, steps), light):
        if batch.topic == "gpu.collective.v1":
            names, c = batch.strings("operation", "operations"), batch.columns
            head = batch.envelope["rank"], batch.envelope["communicator"]
            for i in range(batch.rows):
                end = int(c["start_ns"][i] + c["duration_ns"][i])
                result[(*head, int(c["step"][i]), int(c["ordinal"][i]))] = str(names[i]), int(c["start_ns"][i]), end
    return result


def test_a_pipeline_runs_one_forward_one_backward():
    first, last = schedule(PIPELINE, 0), schedule(PIPELINE, 3)
    passes = ["".join(part.name[0] for part in program if isinstance(part, Pass)) for program in (first, last)]
    assert passes == ["fff" + "fb" * 5 + "bbb", "fb" * 8]
    sent = sum(len(part.sent) for part in first if isinstance(part, Exchange))
    received = sum(len(part.received) for part in schedule(PIPELINE, 1) if isinstance(part, Exchange))
    assert (sent, received) == (8, 16)


def test_a_step_of_equal_stages_lasts_as_long_as_its_batches_and_its_bubble():
    """(batches + stages - 1) forward and backward passes; they take what is recorded, 2 % more or less."""
    both = PIPELINE.pass_ns * (1 + 382.8 / 218.1)
    assert run(PIPELINE, 3).time_ns(0, 2) / 3 == pytest.approx((8 + 4 - 1) * both, rel=0.03)


@WORLDS
def test_all_ranks_of_a_collective_leave_it_together_and_never_before_the_last_has_come(world):
    groups = {}
    for (_, communicator, step, ordinal), (operation, start, end) in operations(world).items():
        if operation not in ("Send", "Recv"):
            groups.setdefault((communicator, step, ordinal, operation), []).append((start, end))
    assert min(len(times) for times in groups.values()) > 1
    for times in groups.values():
        assert max(end for _, end in times) - min(end for _, end in times) <= 1
        assert max(start for start, _ in times) < times[0][1]


def test_what_is_sent_is_received_in_order_and_never_before():
    times = {"Send": {}, "Recv": {}}
    for (rank, communicator, step, ordinal), (operation, start, end) in sorted(operations(PIPELINE).items()):
        if operation in times:
            times[operation].setdefault((communicator, step), {}).setdefault(rank, []).append((ordinal, start, end))
    assert times["Send"].keys() == times["Recv"].keys()
    for pair, senders in times["Send"].items():
        low, high = sorted(senders)
        for source, target in ((low, high), (high, low)):
            messages = list(zip(senders[source], times["Recv"][pair][target], strict=True))
            assert len(messages) == 8
            assert all(end >= left + PIPELINE.transfer_ns for (_, left, _), (_, _, end) in messages)


@TIERS
@WORLDS
def test_budgets_add_up_and_both_tiers_have_the_same_communication(world, light):
    exposed = {}
    for _, batch in world_batches(run(world, 4), light):
        if batch.topic == "gpu.step.v1":
            c = batch.columns
            parts = sum(c[name] for name in ("compute_ns", "copy_ns", "comm_exposed_ns", "idle_ns"))
            assert parts.tolist() == c["gpu_duration_ns"].tolist()
            exposed[batch.envelope["rank"]] = c["comm_exposed_ns"].tolist()
    assert len(exposed) == world.ranks
    assert operations(world, light) == operations(world)


@TIERS
@pytest.mark.parametrize("kind", ["compute", "host"])
def test_a_slow_gpu_computes_longer_and_a_slow_host_leaves_it_idle(light, kind):
    world, column = World(data=2, tensor=2), {"compute": "compute_ns", "host": "idle_ns"}[kind]
    spent = {"compute_ns": {}, "idle_ns": {}}
    for _, batch in world_batches(run(world, 4, (Slowed(1, kind, 1.5),)), light):
        if batch.topic == "gpu.step.v1":
            for name, of_ranks in spent.items():
                of_ranks[batch.envelope["rank"]] = batch.columns[name].sum()
    for name, of_ranks in spent.items():
        more = of_ranks[1] - of_ranks[0]
        work = spent["compute_ns"][0]
        assert more == pytest.approx(0.5 * work if name == column else 0.0, abs=0.03 * work)


def test_a_seed_gives_one_world():
    first, again, different = (run(PIPELINE, 2, seed=seed).bounds for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, different)


def test_the_true_loss_is_what_the_steps_grew_by():
    slowed = (Slowed(3, "compute", 1.5, 2, 5),)
    assert true_share(World(data=4), 8, slowed, 2, 5) == pytest.approx(1 / 3, abs=0.01)
    assert true_share(World(data=4), 8, slowed, 0, 1) == 0.0
    assert true_share(World(data=4), 8, (), 0, 7) == 0.0
    few, many = (World(pipeline=4, data=2, microbatches=batches) for batches in (4, 32))
    assert true_share(few, 2, (Slowed(0, "compute", 1.5),), 0, 1) < 0.15, "the bubble takes up a part"
    assert 0.25 < true_share(many, 2, (Slowed(0, "compute", 1.5),), 0, 1) < 1 / 3


@TIERS
@WORLDS
def test_healthy_worlds_name_no_rank(world, light):
    result = evaluated(world_batches(run(world, 16, seed=3), light), CONFIG)
    assert len(result) == 4
    assert [rows for rows in named_ranks(result) if rows] == []


@TIERS
def test_stages_that_differ_by_design_name_no_rank(light):
    world = World(pipeline=4, data=2, weights=recorded_weights("ST"), tied_embeddings=True)
    result = evaluated(world_batches(run(world, 16), light), CONFIG)
    assert [rows for rows in named_ranks(result) if rows] == []


@TIERS
@pytest.mark.parametrize(("kind", "cause"), [("compute", ("slow_compute", "slow_gpu")), ("host", ("host_stall",) * 2)])
def test_a_slow_rank_of_a_pipeline_is_named_with_what_it_cost(light, kind, cause):
    world = World(pipeline=4, data=3, microbatches=32)
    slowed = (Slowed(0, kind, 1.5, 16, 27),)
    result = evaluated(world_batches(run(world, 28, slowed), light), CONFIG)
    windows = [result[first] for first in (16, 20, 24)]
    assert [{rank: row[1] for rank, row in rows.items() if row[0] > 0} for rows in windows] == [{0: cause[light]}] * 3
    true = true_share(world, 28, slowed, 16, 27)
    assert [rows[0][2] for rows in windows] == pytest.approx([true] * 3, abs=0.01)


@TIERS
def test_a_loss_counts_where_peers_wait_in_the_group_of_tied_embeddings(light):
    world = World(pipeline=4, data=3, microbatches=32, tied_embeddings=True, loss_all_reduce=True)
    slowed = (Slowed(0, "compute", 1.5, 16, 27),)
    result = evaluated(world_batches(run(world, 28, slowed), light), CONFIG)
    true = true_share(world, 28, slowed, 16, 27)
    assert result[20][0][2] == pytest.approx(true, abs=0.01)
