"""Floods of dead letters: who is isolated, which partition is paused, and when the sink ends."""

from types import SimpleNamespace

import pytest

from drumline.infra.config.settings import SinkSettings
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks import intake as intake_module
from drumline.sinks.intake import Intake, TooManyDeadLetters
from drumline.sinks.ranges.dead_letter_limit import FLOOD_S
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Record
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

RUN = 20


@pytest.fixture
def flood(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(intake_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    states = {(Topic.KERNEL.value, p): PartitionState(table(Topic.KERNEL), p, "id", 0, opened=True) for p in range(2)}
    kafka = SimpleNamespace(states=states, pause_partition=lambda state: None)
    intake = Intake(SinkSettings(dead_letter_run=RUN), kafka, Codec(), SinkCounts())

    def send(partition, keys):
        state = states[Topic.KERNEL.value, partition]
        for key in keys:
            intake.take(Record(Topic.KERNEL.value, partition, state.next_offset, key.encode(), b"garbage", 0, []))
        return state

    return SimpleNamespace(send=send, intake=intake, clock=clock)


def test_a_flood_of_one_producer_stops_nothing(flood):
    state = flood.send(0, ["evil"] * 5 * RUN)
    assert len(state.entries) == 5 * RUN
    assert state.flows
    assert f"gpu.kernel.v1 partition 0, offset {5 * RUN - 1}" in state.flood, "/readyz names it"


def test_a_flooded_partition_is_not_read_for_a_while(flood):
    state = flood.send(0, [f"key-{i}" for i in range(RUN)])
    assert not state.flows
    assert flood.intake.end_floods() is False
    flood.clock.now += FLOOD_S
    assert flood.intake.end_floods() is True
    assert state.flows
    assert not state.flood


def test_the_sink_ends_when_all_its_partitions_are_flooded(flood):
    flood.send(0, [f"key-{i}" for i in range(RUN)])
    with pytest.raises(TooManyDeadLetters, match="partition 1"):
        flood.send(1, [f"key-{i}" for i in range(RUN)])
