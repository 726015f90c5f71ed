"""Verdicts on batches that come merged in tables are those on the batches alone, on recordings and simulated jobs."""

import random

import numpy as np
import pytest
from support import recordings
from support.kept_streams import RECORDED, SIMULATED
from support.labs.sink import any_batch
from support.labs.stage_feed import seen
from support.tables import apply_batch, open_all, parts_of

from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.lateness.state import CommunicatorState
from drumline.streams.offline import applied, results, verdicts
from drumline.streams.stragglers.stage import JobStage

CODEC = Codec()


def tables(stream, seed):
    """The stream as agents merge it: some batches of a topic, key and run, none of them for longer than a second."""
    chance, waiting = random.Random(seed), {}

    def table(place):
        batches = waiting.pop(place)
        (last_ns, _), values, records = batches[-1], [value for _, value in batches], []
        while values:  # of several hosts, which consumers read together
            count = chance.randint(1, 4)
            records.append(open_all(CODEC, place[0], [CODEC.merge(place[0], values[:count])])[0])
            del values[:count]
        merged = CODEC.merged_table(place[0], records)
        assert is_inside(merged)
        return last_ns, merged

    out = []
    for time_ns, batch in stream:
        place = str(batch.topic), record_key(batch), batch.envelope["run"]
        for other in [p for p, batches in waiting.items() if time_ns - batches[0][0] > 10**9]:
            out.append((time_ns, table(other)[1]))
        waiting.setdefault(place, []).append((time_ns, CODEC.encode(batch)))
        if len(waiting[place]) == 200 or chance.random() < 0.05:
            out.append(table(place))
    return out + [table(place) for place in list(waiting)]


def alike(stream, window_steps):
    """The order of (late) rows decides on revisions, and what comes behind the horizon: the last verdict counts."""
    config = StragglerConfig(window_steps=window_steps, retention_steps=10_000, max_steps=20_000)
    wanted = seen(verdicts(stream, config))
    for seed in range(2):
        assert seen(verdicts(tables(stream, seed), config)) == wanted
    return wanted


@pytest.mark.parametrize("name", SIMULATED)
def test_verdicts_on_a_simulated_job(name):
    assert alike(SIMULATED[name](), 12)


@pytest.mark.parametrize("name", RECORDED)
def test_verdicts_on_a_recording(name):
    assert alike(recordings.stream(recordings.folder(name)), 5)


def test_tables_that_come_again_after_a_restart_change_nothing():
    """Both stages restart from their stores at any table, and read some tables again."""
    stream, config = SIMULATED["mesh"](), StragglerConfig(window_steps=12)
    wanted, chance = seen(verdicts(stream, config)), random.Random(5)
    tabled = tables(stream, 5)
    stores, topics = ({}, {}), ((Topic.COLLECTIVE,), (Topic.LATENESS, Topic.STEP))
    offsets, first = [], 1
    for _, table in tabled:
        offsets.append(first)
        first += table.parts

    def built():
        return [CommunicatorStage(stores[0], config), JobStage(stores[1], config)]

    stages, published, at, sent = built(), [], 0, first

    def deliver(stage, returned):
        nonlocal sent
        for batch in returned:
            sent += 1
            if batch.topic == Topic.LATENESS:
                deliver(stages[1], apply_batch(stages[1], batch, sent, now_ns))
            else:
                published.append(batch)
            stage.mark_sent(batch)

    while at < len(tabled):
        now_ns, table = tabled[at]
        for stage, read in zip(stages, topics, strict=True):
            if table.topic in read:
                deliver(stage, applied(stage, table, offsets[at] + np.arange(table.parts), now_ns))
        at += 1
        if chance.random() < 0.1:
            stages, at = built(), max(0, at - chance.randrange(5))
    for _ in range(3):
        now_ns += 2 * config.idle_ns
        for stage in stages:
            deliver(stage, stage.on_tick(now_ns, True))
    assert seen(published) == wanted


def test_results_take_tables():
    stream = SIMULATED["ddp"]()
    stages = [((Topic.COLLECTIVE,), CommunicatorStage({}, StragglerConfig(window_steps=12)))]
    assert list(results(tables(stream, 0), stages, 5 * 10**9))


@pytest.mark.parametrize(("steps", "calls"), [((-1, 90_000), 1), ((1, 90_000), 3)])
def test_rows_of_no_step_do_not_take_a_table_apart(steps, calls, monkeypatch):
    values, taken, apply = [], [], CommunicatorState.apply
    for number in range(3):
        batch = any_batch(Topic.COLLECTIVE, 2, f"p{number}", number, seed=number)
        batch.columns["step"] = np.array(steps, batch.columns["step"].dtype)
        values.append(CODEC.encode(batch))
    monkeypatch.setattr(CommunicatorState, "apply", lambda *of: (taken.append(of), apply(*of))[1])
    table = parts_of(CODEC, Topic.COLLECTIVE, CODEC.merge(Topic.COLLECTIVE, values)).merged
    stage = CommunicatorStage({}, StragglerConfig())
    applied(stage, table, np.arange(table.parts), 1)
    [state] = stage.states.values()
    assert (len(taken), sorted(state.members)) == (calls, [0, 1, 2])
