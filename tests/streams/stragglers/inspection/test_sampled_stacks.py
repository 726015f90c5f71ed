"""Stacks of a suspect and its peer become one inspection, whatever their order, repetition, or a restart."""

import random
from dataclasses import replace

import pytest
from support.labs.stacks import both, sampled

from drumline.streams.stragglers.inspection.sampled_stacks import MOST_KEPT, MOST_OPEN, SampledStacks


def inspections(records, restarts=()):
    store, matched = {}, []
    stacks = SampledStacks(store, "job")
    for offset, record in enumerate(records):
        matched.append(stacks.apply(record, offset))
        if offset in restarts:
            stacks = SampledStacks(store, "job")
            stacks.restore()
    return [of for of in matched if of is not None], stacks


def test_the_last_record_of_both_completes_an_inspection():
    [matched], stacks = inspections(both(0.3))
    assert (matched.rank, matched.peer, matched.first_step, matched.at) == (1, 0, 40, "load (data.py:4)")
    assert matched.share == pytest.approx(0.3, abs=0.05)
    assert stacks.inspections == [matched]


@pytest.mark.parametrize("seed", range(3))
def test_order_repetition_and_restarts_change_nothing(seed):
    dice, expected = random.Random(seed), inspections(both(0.3))[0]
    records = both(0.3)
    records += dice.sample(records[:-1], 10)
    dice.shuffle(records)
    matched, stacks = inspections(records, restarts=set(dice.sample(range(40), 8)))
    assert [replace(of, chance=0) for of in matched] == [replace(of, chance=0) for of in expected]
    assert matched[0].chance == pytest.approx(expected[0].chance, rel=1e-6)
    assert stacks.inspections == matched


def test_a_record_that_was_applied_changes_nothing():
    store = {}
    stacks = SampledStacks(store, "job")
    for offset, record in enumerate(both(0.3)):
        stacks.apply(record, offset)
    kept = dict(store)
    assert all(stacks.apply(record, offset) is None for offset, record in enumerate(both(0.9)))
    assert store == kept


@pytest.mark.parametrize("change", [{"verdict": "straggler"}, {"verdict": "hang"}, {"role": "culprit"}])
def test_samplings_of_named_ranks_and_unknown_roles_are_no_inspection(change):
    records = both(0.3)
    for record in records:
        if record.envelope["role"] == "suspect":
            record.envelope.update(change)
    assert inspections(records)[0] == []


def test_a_suspect_without_its_peer_is_none_and_takes_no_more_than_some_places():
    records = [record for step in range(0, 400, 20) for record in sampled(1, "suspect", 0.3, first_step=step)]
    matched, stacks = inspections(records)
    assert (matched, len(stacks._open)) == ([], MOST_OPEN)


def test_only_the_newest_inspections_are_kept():
    records = [record for step in range(0, 400, 20) for record in both(0.3, first_step=step)]
    matched, stacks = inspections(records)
    assert (len(matched), len(stacks.inspections)) == (20, MOST_KEPT)
    assert stacks.inspections[-1].first_step == 380
