"""A call emits the steps of so many ranks, and the next ones go on: the worker answers Kafka in between."""

from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, mesh, simulate
from support.tables import apply_batch

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import stage as module
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import verdicts

CONFIG = StragglerConfig(window_steps=12)
STREAM = batches(simulate(mesh(4, 2), 48, (Fault(1, "idle", 25 * MS, first=12, last=35),)))


def test_no_call_emits_more_than_its_ranks_and_verdicts_do_not_show_it(monkeypatch):
    whole = seen(verdicts(STREAM, CONFIG))
    monkeypatch.setattr(module, "EMITTED_RANKS", 3)
    assert seen(verdicts(STREAM, CONFIG)) == whole


def test_what_a_call_leaves_follows_with_the_next_messages(monkeypatch):
    collectives = [item for item in STREAM if item[1].topic == Topic.COLLECTIVE]
    monkeypatch.setattr(module, "EMITTED_RANKS", 1)  # a communicator a call
    stage, units, emitted = CommunicatorStage({}, CONFIG), [], {}
    for offset, (time_ns, batch) in enumerate(collectives):
        out = apply_batch(stage, batch, offset, time_ns)
        units.append(len({late.envelope["communicator"] for late in out}))
        for late in out:
            emitted[late.envelope["communicator"]] = late.envelope["complete_step"]
            stage.mark_sent(late)
    assert max(units) == 1
    assert len(emitted) == len(stage.states)
    assert min(emitted.values()) >= 40, "no communicator waits for a tick"
