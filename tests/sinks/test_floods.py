"""Floods of dead letters: who is isolated, and how fast a flooded partition is read."""

from types import SimpleNamespace

import pytest

from drumline.infra.config.settings import SinkSettings
from drumline.infra.telemetry import metrics
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks import intake as intake_module
from drumline.sinks.intake import Intake
from drumline.sinks.ranges.dead_letter_limit import FLOOD_S, RUN_S
from drumline.sinks.ranges.disposition import Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

RUN = 20


@pytest.fixture
def flood(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(intake_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    states = {(Topic.KERNEL.value, p): PartitionState(table(Topic.KERNEL), p, "id", 0, opened=True) for p in range(2)}
    kafka = SimpleNamespace(states=states, pause_partition=lambda state: None)
    monkeypatch.setattr(intake_module, "FLOOD_RUN", RUN)
    intake = Intake(SinkSettings(), kafka, Codec(), SinkCounts())

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


def test_a_partition_that_many_flood_is_read_at_a_limited_rate(flood):
    sent, began = 0, flood.clock.now
    while sent < 100 * RUN:
        state = flood.send(0, [f"key-{sent}"])
        sent += 1
        assert "gpu.kernel.v1 partition 0" in state.flood or sent < RUN
        while not state.flows:
            flood.clock.now += RUN_S / 4
            flood.intake.end_floods()
    assert flood.clock.now - began == pytest.approx(98 * RUN_S, rel=0.02), "not a minute for each run"
    assert len(state.entries) == sent


def test_a_flood_that_is_slow_anyway_waits_for_nothing(flood):
    for sent in range(10 * RUN):
        assert flood.send(0, [f"key-{sent}"]).flows
        flood.clock.now += 2 * RUN_S / RUN


def test_a_flood_is_reported_once_and_until_it_is_over(flood):
    before = floods()
    for sent in range(10 * RUN):
        state = flood.send(0, [f"key-{sent}"])
    assert floods() == before + 1
    flood.clock.now += FLOOD_S - 1
    flood.intake.end_floods()
    assert (bool(state.flood), state.flows) == (True, True)
    flood.clock.now += 1
    flood.intake.end_floods()
    assert not state.flood


def test_the_sink_goes_on_when_all_its_partitions_are_flooded(flood):
    for partition in range(2):
        state = flood.send(partition, [f"key-{i}" for i in range(5 * RUN)])
        assert len(state.entries) == 5 * RUN


def floods():
    return metrics.SINK_FLOODS.labels(Topic.KERNEL.value)._value.get()
