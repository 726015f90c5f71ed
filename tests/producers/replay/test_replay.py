"""Replaying: what is published is what is counted, whenever and however it ends."""

import json
import signal
import threading
import uuid
from collections import Counter
from types import SimpleNamespace

import pytest
from support.activity_builder import lockstep
from typer.testing import CliRunner

from drumline.cli.record import replay as command_replay
from drumline.infra.config.settings import Settings
from drumline.infra.kafka import acls as kafka_access
from drumline.producers.replay import publisher as publisher_module
from drumline.producers.replay.publisher import Publisher
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.replay import ReplayOptions, mint_run, replay
from drumline.schemas.codec import Codec
from drumline.schemas.topics import RAW_TOPICS, Topic

NOW = 1_800_000_000_000_000_000


class Rejection:
    def str(self):
        return "Broker: not enough in-sync replicas"


class FakeClient:
    """Takes records and acknowledges them on poll, as librdkafka does. `capacity`: how many fit into its queue."""

    def __init__(self, capacity=10**9, reject_after=None):
        self.records, self.waiting = [], []
        self.capacity, self.reject_after = capacity, reject_after
        self.clock = 0.0

    def produce(self, topic, value, key, on_delivery):
        if len(self.waiting) >= self.capacity:
            raise BufferError
        self.waiting.append((topic, value, key, on_delivery))

    def poll(self, timeout):
        self.clock += timeout
        for topic, value, key, on_delivery in self.waiting:
            if self.reject_after is not None and len(self.records) >= self.reject_after:
                on_delivery(Rejection(), None)
            else:
                self.records.append((topic, key.decode(), value))
                on_delivery(None, None)
        self.waiting.clear()
        return 0

    def flush(self, timeout):
        return self.poll(0)


@pytest.fixture
def folder(tmp_path):
    return lockstep(ranks=2, steps=6).write(tmp_path / "job", ranks=2)


def run(recording, client, **more):
    publisher = Publisher(Settings(), Codec(), "test", client)
    options = ReplayOptions(**more)
    return replay(recording, publisher, options, now_ns=lambda: NOW, elapsed_s=lambda: client.clock)


def decoded(client):
    return [Codec().decode(topic, value) for topic, _, value in client.records]


def rows(client):
    counted = Counter()
    for batch in decoded(client):
        counted[batch.topic] += batch.rows
    return dict(counted)


def test_the_summary_counts_what_the_broker_has(folder):
    client = FakeClient(capacity=3)
    summary = run(RecordedJob(folder), client)
    assert {k: v for k, v in summary.rows.items() if v} == rows(client)
    assert sum(summary.batches.values()) == len(client.records)
    assert summary.rows["gpu.kernel.v1"] == 24
    assert (summary.dropped, summary.unsent, summary.interrupted, summary.problem) == (0, 0, False, "")
    assert json.loads(json.dumps(summary.as_json()))["run"] == summary.run


def test_as_fast_as_possible_the_job_ends_now(folder):
    client = FakeClient()
    summary = run(RecordedJob(folder, loop=2), client)
    assert summary.last_ns == NOW
    assert max(b.envelope["watermark_ns"] for b in decoded(client)) == NOW
    assert client.clock == 0  # nothing was waited for


def test_paced_the_job_starts_now_and_batches_leave_when_they_are_due(folder):
    recording, client = RecordedJob(folder), FakeClient()
    span_s = (recording.last_ns - recording.first_ns) / 1e9
    summary = run(recording, client, speed=0.5)
    assert summary.first_ns == NOW
    assert min(b.columns["start_ns"].min() for b in decoded(client) if b.topic == "gpu.range.v1") == NOW
    assert client.clock == pytest.approx(2 * span_s, rel=0.01)


def test_keep_time_keeps_it(folder):
    recording = RecordedJob(folder)
    assert run(recording, FakeClient(), keep_time=True).first_ns == recording.first_ns == 1_000_000_000


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_stopping_leaves_nothing_half_counted(folder, after):
    recording, client, stop = RecordedJob(folder), FakeClient(), threading.Event()
    seen = []

    def progress(count):
        seen.append(count)
        if len(seen) >= after:
            stop.set()

    if after == 0:
        stop.set()
    summary = run(recording, client, stop=stop, progress=progress)
    assert len(client.records) == after
    assert {k: v for k, v in summary.rows.items() if v} == {k: v for k, v in rows(client).items() if v}
    assert summary.interrupted
    assert summary.dropped == 0
    assert sum(summary.rows.values()) + summary.unsent == sum(recording.rows.values())


def test_a_refused_batch_ends_the_replay_and_is_not_counted(folder):
    client = FakeClient(reject_after=3)
    summary = run(RecordedJob(folder), client)
    assert "in-sync" in summary.problem
    assert not summary.interrupted
    assert sum(summary.batches.values()) == 3 == len(client.records)
    assert summary.dropped >= 0


def test_every_replay_is_a_run_of_its_own_and_process_ids_derive_from_it(folder):
    recording = RecordedJob(folder)
    runs = []
    for _ in range(2):
        client = FakeClient()
        summary = run(recording, client)
        runs.append({b.envelope["process_id"] for b in decoded(client)})
        assert {b.envelope["run"] for b in decoded(client)} == {summary.run}
        assert all(uuid.UUID(p).version == 5 for p in runs[-1])
    assert not runs[0] & runs[1]
    assert mint_run(NOW) != mint_run(NOW)
    assert mint_run(NOW).startswith("20270115-080000-")


def test_keys(folder):
    client = FakeClient()
    run(RecordedJob(folder, job="train"), client)
    for (topic, key, _), batch in zip(client.records, decoded(client), strict=True):
        if topic in ("gpu.step.v1", "gpu.device.v1"):
            assert key == "train"
        elif topic == "gpu.collective.v1":
            assert key == "train:dd318007bda2b640"
        else:
            assert key == batch.envelope["process_id"]


@pytest.fixture
def on_the_command_line(monkeypatch):
    """The command with a fake client instead of a broker."""
    client = FakeClient()
    monkeypatch.setattr(publisher_module, "Producer", lambda config: client)
    monkeypatch.setattr(kafka_access, "require_acls", lambda settings, client_id, topics: None)
    monkeypatch.setattr("drumline.infra.kafka.connect.require_listener", lambda settings: None)
    return client


def test_the_command_prints_one_json_object(folder, on_the_command_line):
    result = CliRunner().invoke(command_replay.app, [str(folder), "--speed", "max", "--json", "--job", "j"])
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["job"] == "j"
    assert {k: v for k, v in summary["rows"].items() if v} == rows(on_the_command_line)


def test_rows_that_are_older_than_their_tables_keep_rows_are_reported_before_the_first_is_published(
    folder, on_the_command_line, monkeypatch
):
    moved = CliRunner().invoke(command_replay.app, [str(folder), "--speed", "max", "--json"])
    assert moved.stderr == ""
    monkeypatch.setattr(on_the_command_line, "produce", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    replayed = [str(folder), "--speed", "max", "--keep-time", "--json"]  # of 1970
    result = CliRunner().invoke(command_replay.app, replayed)
    assert json.loads(result.stdout)["rows"]["gpu.kernel.v1"] == 0
    assert "96 rows are older than 5 years: their batches become dead letters" in result.stderr
    assert "kept" not in result.stderr
    days_ns = 100 * 86_400 * 10**9
    monkeypatch.setattr(command_replay, "time", SimpleNamespace(time_ns=lambda: days_ns))
    result = CliRunner().invoke(command_replay.app, replayed)
    assert "5 years" not in result.stderr
    counted = RecordedJob(folder, loop=2).rows_before(dict.fromkeys(RAW_TOPICS, NOW))
    assert counted[Topic.KERNEL] == 48, "of both repetitions"
    assert f"kernels {counted[Topic.KERNEL] // 2} (7 days)" in result.stderr
    assert """DRUMLINE_CLICKHOUSE__RETENTION='{"kernels": DAYS}' (0 = for ever)""" in result.stderr


def test_of_the_rows_of_a_scaled_job_those_before_a_time_are_counted(folder):
    job, times = RecordedJob(folder, ranks=5), []
    for out in job.batches():
        times += out.batch.columns["start_ns"].tolist() if out.batch.topic == Topic.KERNEL else []
    middle = sorted(times)[len(times) // 2]
    assert job.rows_before({Topic.KERNEL: middle}) == {Topic.KERNEL: sum(time < middle for time in times)}


def test_ctrl_c_before_anything_was_published_is_no_broker_that_does_not_answer(
    folder, on_the_command_line, monkeypatch
):
    monkeypatch.setattr(kafka_access, "require_acls", lambda *_: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(command_replay.app, [str(folder), "--speed", "max"])
    assert (result.exit_code, result.output) == (130, "")
    assert on_the_command_line.records == []


def test_ctrl_c_prints_what_was_acknowledged_and_exits_130(folder, on_the_command_line, monkeypatch):
    client = on_the_command_line
    produce = client.produce

    def press(*args, **kwargs):
        produce(*args, **kwargs)
        if len(client.records) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(client, "produce", press)
    before = signal.getsignal(signal.SIGINT)
    result = CliRunner().invoke(command_replay.app, [str(folder), "--speed", "max", "--json"])
    assert result.exit_code == 130
    summary = json.loads(result.stdout)
    assert summary["interrupted"]
    assert sum(summary["batches"].values()) == len(client.records) == 6
    assert signal.getsignal(signal.SIGINT) is before


def test_a_rejected_batch_exits_1_with_the_reason(folder, on_the_command_line):
    on_the_command_line.reject_after = 2
    result = CliRunner().invoke(command_replay.app, [str(folder), "--speed", "max"])
    assert result.exit_code == 1
    assert "in-sync" in result.output
