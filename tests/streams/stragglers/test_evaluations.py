"""Verdicts state which evaluation of the run they are part of, in sequences of that evaluation."""

from support.straggler_simulator import batches, ddp, simulate

from drumline.infra.config.settings import Settings, StreamSettings
from drumline.schemas.topics import Topic
from drumline.streams.offline import results
from drumline.streams.worker.app import wirings

STREAM = batches(simulate(ddp(2), 40, ()))


def published(app_id, window_steps):
    """Return (evaluations, process ids) of the verdicts of a worker with these settings."""
    settings = Settings(stream=StreamSettings(app_id=app_id, window_steps=window_steps))
    named = [wiring for wiring in wirings(settings) if wiring.name in ("communicator", "job")]
    stages = [(wiring.inputs, wiring.build({})) for wiring in named]
    sent = [b.envelope for b in results(STREAM, stages, 5 * 10**9) if b.topic == Topic.STRAGGLER]
    assert len(sent) >= 2
    return {envelope["evaluation"] for envelope in sent}, {envelope["process_id"] for envelope in sent}


def test_the_app_id_and_the_steps_of_a_window_identify_an_evaluation_and_its_sequences():
    seen = [published("drumline-demo", 5), published("drumline-streams", 5), published("drumline-streams", 20)]
    assert [names for names, _ in seen] == [{"drumline-demo/5"}, {"drumline-streams/5"}, {"drumline-streams/20"}]
    processes = [process for _, [process] in seen]
    assert len(set(processes)) == 3
    assert published("drumline-streams", 20) == seen[2]
