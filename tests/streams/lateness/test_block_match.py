"""Blocks that are compared together: each comes out as if it were compared one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from support.labs.lateness import rows
from support.straggler_simulator import batches, mesh, simulate
from support.tables import apply_batch

from drumline.streams.core.records import pack_rows, stacked
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import block_match, emission, stage
from drumline.streams.lateness.block_match import match_blocks
from drumline.streams.lateness.blocks import OpenSteps
from drumline.streams.lateness.collective_join import match_step
from drumline.streams.lateness.collective_rows import KIND, OPERATIONS, POINT_TO_POINT, RECEIVE, SEND, operation_number
from drumline.streams.lateness.emission import Emission, passes

QUORUM, WHOLE = 0.8, 0.5
REDUCE = operation_number("Reduce")


def random_rows(dice, operations, ordinals, step):
    """Return rows of one rank. `operations`: by number, as long as `ordinals`."""
    out = rows(dice.integers(1, 50, len(ordinals)), step=step, operation=operations, ordinals=ordinals)
    out["lockstep"] = [KIND.get(OPERATIONS[o], 0) if o < len(OPERATIONS) else 0 for o in out["operation"]]
    out["covered_ns"] = dice.integers(0, 30, len(ordinals))
    out["start_ns"] = np.sort(dice.integers(0, 999, len(ordinals)))
    out["bytes"] = dice.choice([8, 1 << 20, 1 << 40], len(ordinals))
    return out


def stored(communicators):
    """Return OpenSteps of communicators: (ranks, steps, step -> rank -> rows)."""
    out = []
    for ranks, wanted, steps in communicators:
        members = sorted({rank for of_step in steps.values() for rank in of_step})
        values = []
        for rank in members:
            parts = [of_step[rank] for _, of_step in sorted(steps.items()) if rank in of_step]
            for part in parts:
                part["rank"] = rank
            values.append(pack_rows(7, {"complete": 1}, stacked(parts)))
        out.append(OpenSteps(ranks, wanted, values, True))
    return out


def same(communicators):
    """Compare both ways, and return what is compared together."""
    matches = match_blocks(stored(communicators), QUORUM, WHOLE)
    for (ranks, wanted, steps), matched in zip(communicators, matches, strict=True):
        assert list(matched) == [step for step in wanted if steps.get(step)]
        for step, match in matched.items():
            expected = match_step(step, dict(sorted(steps[step].items())), ranks, QUORUM, WHOLE)
            assert match.pattern == expected.pattern
            for result, wished in zip(match[:2], expected[:2], strict=True):
                assert result.dtype == wished.dtype
                assert result.tolist() == wished.tolist()
            if expected.table.shape[1]:
                assert match.table.tolist() == expected.table.tolist()
            else:
                assert not match.table.shape[1]
    return matches


PROGRAMS = [[0], [0, 1, 0, 2], [0, REDUCE, 6, 1], [6, 7], [REDUCE], [4, 5, 4], [6, 6], [0, 4, 5], [3, 3, 3, 3, 3, 3]]


DAMAGES = ("", "", "", "hole", "short", "other", "missing", "sends", "empty", "gap", "stage", "pair")


def communicator(dice):
    """A communicator of some ranks over some steps, each damaged or whole."""
    members, program = int(dice.integers(1, 7)), PROGRAMS[dice.integers(len(PROGRAMS))]
    steps = {}
    for step in sorted(dice.choice(10, dice.integers(1, 4), replace=False).tolist()):
        of_step = {rank * 3: random_rows(dice, program, [*range(len(program))], step) for rank in range(members)}
        damage, rank = dice.choice(DAMAGES), 3 * int(dice.integers(members))
        keep = np.arange(len(program)) != dice.integers(len(program))
        if damage == "hole":
            of_step[rank] = of_step[rank][keep]
        elif damage == "short":
            of_step[rank] = of_step[rank][:-1]
        elif damage == "other":
            of_step[rank] = random_rows(dice, [2] * len(program), [*range(len(program))], step)
        elif damage == "missing":
            del of_step[rank]
        elif damage == "sends":
            of_step[rank] = random_rows(dice, [4] * len(program), [*range(len(program))], step)
        elif damage == "gap":
            of_step = {r: part[keep] for r, part in of_step.items()}
        elif damage == "stage":
            sends = {r: [4 + (r // 3 + k) % 2 for k in range(2 + r)] for r in of_step}
            of_step = {r: random_rows(dice, numbers, [*range(len(numbers))], step) for r, numbers in sends.items()}
        elif damage == "pair":
            sends = {r: [4 + (at + k) % 2 for k in range(5)] + [0] * (step % 2) for at, r in enumerate(of_step)}
            of_step = {r: random_rows(dice, numbers, [*range(len(numbers))], step) for r, numbers in sends.items()}
        steps[step] = {r: part for r, part in of_step.items() if len(part) and damage != "empty"}
    wanted = sorted({*dice.choice(10, 3, replace=False).tolist(), *(steps if dice.random() < 0.7 else ())})
    return members, wanted, steps


@pytest.mark.parametrize("pass_rows", [1, 20, 1 << 16])
def test_blocks_come_out_as_one_by_one(monkeypatch, pass_rows):
    monkeypatch.setattr(block_match, "PASS_ROWS", pass_rows)
    for seed in range(60):
        dice = np.random.default_rng([pass_rows, seed])
        same([communicator(dice) for _ in range(dice.integers(1, 6))])


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_pieces_that_come_again_and_in_any_order_are_those_of_whole_steps(seed):
    """A rank sends a step in several batches, and some twice; a step that began anew replaces the first one."""
    dice = np.random.default_rng(seed)
    given = [communicator(dice) for _ in range(4)]
    whole, in_pieces = stored(given), []
    for of, (_, _, steps) in zip(whole, given, strict=True):
        pieces = []
        for rows_of in steps.values():
            for part in rows_of.values():
                ends = sorted({0, *dice.integers(0, len(part) + 1, 2).tolist(), len(part)})
                pieces += [part[begin:end] for begin, end in pairwise(ends)]
                earlier = part.copy()
                earlier["start_ns"] -= 10_000
                pieces += [earlier] if dice.random() < 0.3 else []
        pieces += [piece for piece in pieces if dice.random() < 0.3]
        order = dice.permutation(len(pieces)).tolist()
        values = [stacked([pieces[at] for at in order[first::3]]) for first in range(3) if order[first::3]]
        in_pieces.append(of._replace(stored=[pack_rows(7, {}, rows) for rows in values]))
    for of_whole, of_pieces in zip(*(match_blocks(of, QUORUM, WHOLE) for of in (whole, in_pieces)), strict=True):
        assert list(of_whole) == list(of_pieces)
        for step, match in of_whole.items():
            for expected, result in zip(match, of_pieces[step], strict=True):
                assert np.asarray(result).tolist() == np.asarray(expected).tolist()


def job(communicators, ranks, steps, program, first_rank=0):
    dice = np.random.default_rng(1)
    return [
        (
            ranks,
            [*steps],
            {
                s: {first_rank + r: random_rows(dice, program, [*range(len(program))], s) for r in range(ranks)}
                for s in steps
            },
        )
        for _ in range(communicators)
    ]


def test_whole_blocks_of_a_mesh_and_a_pipeline_are_never_compared_one_by_one(monkeypatch):
    mesh = [*job(9, 8, range(3), [0, 0, 1]), *job(4, 16, range(3), [1, 2, REDUCE]), *job(6, 4, range(3), [4, 5])]
    same(mesh)
    monkeypatch.setattr(block_match, "match_step", None)
    matches = match_blocks(stored(mesh), QUORUM, WHOLE)
    assert {m.pattern for matched in matches for m in matched.values()} == {"", "exchange"}
    assert [int(matched[2].rows["collectives"][0]) for matched in matches] == [3] * 9 + [2] * 4 + [0] * 6


def test_ranks_of_which_one_sends_what_the_other_receives_are_a_pipeline():
    dice = np.random.default_rng(2)
    unequal = {0: random_rows(dice, [4, 4], [0, 1], 3), 1: random_rows(dice, [5, 4, 5, 4], [0, 1, 2, 3], 3)}
    alike = {0: random_rows(dice, [4, 5], [0, 1], 3), 1: random_rows(dice, [4, 5, 4], [0, 1, 2], 3)}
    disjoint = {0: random_rows(dice, [4], [0], 3), 1: random_rows(dice, [5, 5], [1, 2], 3)}
    matches = same([(2, [3], {3: rows_of}) for rows_of in (unequal, alike, disjoint)])
    assert [matched[3].pattern for matched in matches] == ["pipeline", "exchange", "exchange"]


def test_what_a_rank_sends_is_paired_with_what_the_other_receives():
    """A receiver that waits shows how long a transfer takes. Rank 0 sends two of 8 bytes and one of 9, rank 3 one."""
    first = rows([5, 30, 7, 2], step=3, operation=[SEND, RECEIVE, SEND, SEND], ordinals=range(4))
    second = rows([60, 4, 40, 90], step=3, operation=[RECEIVE, SEND, RECEIVE, RECEIVE], ordinals=range(4))
    first["bytes"], second["bytes"] = [8, 8, 8, 9], [8, 8, 8, 9]
    for part in (first, second):
        part["lockstep"] = POINT_TO_POINT
    [matched] = same([(2, [3], {3: {0: first, 3: second}})])
    assert matched[3].pattern == "pipeline"
    assert matched[3].kinds.tolist() == [(3, SEND, 8, 3, 5 + 7 + 4), (3, SEND, 9, 1, 2)]
    [lost] = same([(2, [3], {3: {0: first, 3: second[:-1]}})])
    assert lost[3].kinds.tolist() == [(3, SEND, 8, 1, 4)]  # of what rank 0 sends it is not known which is missing
    [unlike] = same([(2, [3], {3: {0: first[1:2], 3: second[1:2]}})])
    assert not len(unlike[3].kinds)
    second["duration_ns"][[0, 2]] = [4, 6]  # late receivers
    [late] = same([(2, [3], {3: {0: first, 3: second}})])
    assert late[3].kinds.tolist() == [(3, SEND, 8, 1, 4), (3, SEND, 9, 1, 2)]


def test_steps_of_any_number_are_found():
    """They come from records: far from each other, they must not size an array, or overflow."""
    far = (1 << 62) - 1
    same([*job(2, 2, [0, far], [0]), *job(1, 3, [5], [0, 1])])


def test_nothing_wanted_and_nothing_stored():
    assert match_blocks([], QUORUM, WHOLE) == []
    assert match_blocks([OpenSteps(2, [1], [], False)], QUORUM, WHOLE) == [{}]


def test_the_communicators_of_a_job_are_compared_together(monkeypatch):
    """Thirteen of them, each with three steps, whichever rank's batch comes last."""
    passes, communicators, order = [], stage.CommunicatorStage({}, StragglerConfig()), np.random.default_rng(3)

    def counted(wanted, *rest):
        passes.append(len(wanted))
        return match_blocks(wanted, *rest)

    monkeypatch.setattr(emission, "match_blocks", counted)
    stream = [batch for _, batch in batches(simulate(mesh(2, 2, 2), 30)) if batch.topic == "gpu.collective.v1"]
    stream.sort(key=lambda batch: (batch.columns["step"][0], order.random()))
    emitted = []
    for offset, batch in enumerate(stream):  # small communicators wait for more ranks at first
        emitted += apply_batch(communicators, batch, offset, 10**18 + offset * 50_000_000)
    steps = {(b.envelope["communicator"], step) for b in emitted for step in b.columns["step"].tolist()}
    assert len(steps) == 13 * 30
    assert max(passes) == 13
    assert len(passes) <= 13 + 10, "a pass for each flush, once all are known"


@pytest.mark.parametrize(
    ("values", "size", "together"), [(40, 1 << 20, [1] * 5), (8, 1 << 20, [2, 2, 1]), (4, 100, [5])]
)
def test_a_pass_ends_by_its_bytes(values, size, together):
    wanted = OpenSteps(2, [1], [bytes(size)] * values, False)
    cuts = [Emission(("run", str(number)), [1], 1, True, wanted) for number in range(5)]
    created = list(passes(cuts))
    assert [len(of_pass) for of_pass in created] == together
    assert [cut for of_pass in created for cut in of_pass] == cuts
