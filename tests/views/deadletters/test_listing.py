"""Reading, counting and replaying dead letters."""

import dataclasses
from types import SimpleNamespace

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from drumline.cli.operate import dlq as command_dlq
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.kafka.broker import RESOURCES
from drumline.schemas.dead_letters import REPLAY_OF, Origin
from drumline.schemas.tenants import SIGNATURE_HEADER
from drumline.schemas.topics import DLQ_RETENTION_MS
from drumline.sinks.kafka.dead_letters import REJECTED, DeadLetterProducer, DeadLettersFailed
from drumline.sinks.kafka.dead_letters import headers as sink_headers
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.streams.worker.output import headers as stream_headers
from drumline.views.deadletters import replay as deadletters_replay
from drumline.views.deadletters.listing import Origins, due, grouped, parse_dead_letter, when

TOPIC = "gpu.kernel.v1"
VALUE = b"\x00\x00\x00\x00\x07SECRET"


class Message:
    def __init__(self, offset, headers, value=VALUE, partition=0, key=b"p"):
        self._fields = (offset, headers, value, partition, key)

    def offset(self):
        return self._fields[0]

    def headers(self):
        return self._fields[1]

    def value(self):
        return self._fields[2]

    def partition(self):
        return self._fields[3]

    def key(self):
        return self._fields[4]

    def timestamp(self):
        return TIMESTAMP_CREATE_TIME, 1_000 * (self._fields[0] + 1)


def by_sink(offset, origin, reason="BadEnvelope", foreign_headers=(), topic_id="id", part=0):
    record = Record(TOPIC, 2, origin, b"p", VALUE, 5_000, list(foreign_headers), part=part)
    entry = RangeEntry(
        record, len(VALUE), None, Disposition.DEAD_LETTER, error=(reason, "gpu.kernel.v1.rows: impossible")
    )
    return parse_dead_letter(Message(offset, sink_headers(entry, topic_id)), TOPIC)


def by_worker(offset, origin, error=None, part=0):
    error = error or ValueError("SECRET")
    place = Origin(TOPIC, 2, origin, part=part)
    return parse_dead_letter(Message(offset, stream_headers(place, error, "streams")), TOPIC)


def test_a_dead_letter_shows_origin_and_reason_and_never_its_bytes():
    item = by_sink(4, 17, foreign_headers=[("traceparent", b"00-1"), ("drumline.error.code", b"Forged")])
    reported = item.as_json()
    assert reported["origin"] == {"topic": TOPIC, "topic_id": "id", "partition": 2, "offset": 17, "part": 0}
    assert (reported["reason"], reported["by"], reported["schema_id"], reported["bytes"]) == (
        "BadEnvelope",
        "sink",
        7,
        len(VALUE),
    )
    assert reported["headers"] == {"traceparent": "00-1"}
    assert reported["time"] == "1970-01-01T00:00:05+00:00"
    assert "SECRET" not in str(reported)


def test_a_dead_letter_of_a_worker_shows_the_same():
    reported = by_worker(4, 17).as_json()
    assert reported["origin"] == {"topic": TOPIC, "topic_id": "", "partition": 2, "offset": 17, "part": 0}
    assert (reported["reason"], reported["by"]) == ("ValueError", "streams")
    assert "worker's log" in reported["text"]
    assert "SECRET" not in str(reported)


def test_what_others_put_there_is_counted_for_itself():
    foreign = [parse_dead_letter(Message(i, None, None, key=None), TOPIC) for i in range(3)]
    [group], records = grouped(foreign)
    assert (group.reason, group.by, group.count, records) == ("?", "?", 3, {TOPIC: 3})
    assert foreign[0].as_json()["bytes"] is None


def test_a_record_that_is_rejected_again_names_its_dead_letter():
    again = by_sink(9, 40, foreign_headers=[("a", b"b"), (REPLAY_OF, b"gpu.kernel.v1.dlq:0:3")])
    assert again.replay_of == "gpu.kernel.v1.dlq:0:3"
    assert again.headers == (("a", b"b"),)


def test_dead_letters_are_counted_per_reader_and_records_once():
    dead_letters = [by_sink(0, 10), by_worker(1, 10), by_sink(2, 10), by_sink(3, 11), by_worker(4, 12)]
    groups, records = grouped(dead_letters)
    assert {(g.reason, g.by): (g.count, len(g.origins)) for g in groups} == {
        ("BadEnvelope", "sink"): (3, 2), ("ValueError", "streams"): (2, 2),
    }  # fmt: skip
    assert records == {TOPIC: 3}
    first = groups[0].as_json()
    assert (first["first"], first["last"]) == (when(1_000), when(4_000))


def test_recreated_topics_have_other_records_at_the_same_offsets():
    origins = Origins()
    assert origins.add(("old", 0, 1, 0))
    assert origins.add(("new", 0, 1, 0))
    assert not origins.add(("", 0, 1, 0)), "one of the two"
    assert len(origins) == 2


def test_each_bad_part_of_a_record_goes_back_once():
    entries = [by_sink(0, 10, part=1), by_sink(1, 10, part=3), by_worker(2, 10, part=3), by_worker(3, 10, part=4)]
    assert [entry.origin for entry in due(entries, {})] == [("id", 2, 10, 1), ("id", 2, 10, 3), ("", 2, 10, 4)]
    assert grouped(entries)[1] == {TOPIC: 3}


@pytest.mark.parametrize("more", [{"reason": REJECTED}, {"foreign_headers": [(SIGNATURE_HEADER, b"s")]}])
def test_the_dead_letter_of_a_part_that_has_the_whole_value_is_that_of_the_record(more):
    assert by_sink(0, 10, part=2, **more).origin == ("id", 2, 10, 0)


DEAD_LETTERS = st.lists(
    st.tuples(st.sampled_from("AB"), st.sampled_from(["sink", "streams"]), st.integers(0, 6)), max_size=25
)


@given(DEAD_LETTERS, st.lists(st.tuples(st.sampled_from(["", "A", "B"]), st.integers(1, 4)), max_size=12))
def test_however_it_is_called_each_record_goes_back_once(dead_letters, calls):
    class A(Exception):
        pass

    class B(Exception):
        pass

    topic = [
        by_sink(n, origin, reason) if by == "sink" else by_worker(n, origin, {"A": A, "B": B}[reason]())
        for n, (reason, by, origin) in enumerate(dead_letters)
    ]
    done, back = {}, []
    for reason, most in [*calls, ("", None)]:
        for item in list(due(topic, done, reason))[:most]:
            assert reason in ("", item.reason)
            done[item.reason, item.partition] = item.offset + 1
            back.append(item.origin[2])
    assert sorted(back) == sorted({origin for _, _, origin in dead_letters})


class SmallQueue:
    """A producer that holds `free_slots` messages until it is polled."""

    def __init__(self, free_slots, answers=True):
        self._free_slots, self._held, self.taken, self._answers = free_slots, [], 0, answers

    def produce(self, _topic, on_delivery, **_):
        if len(self._held) >= self._free_slots:
            raise BufferError
        self._held.append(on_delivery)
        self.taken += 1

    def poll(self, _seconds):
        for answer in self._held:
            answer(None, None)
        self._held.clear()

    def flush(self, seconds):
        if self._answers:
            self.poll(seconds)
        return len(self._held)

    def purge(self):
        self._held.clear()


def ten_dead_letters():
    records = [Record(TOPIC, 0, n, b"p", VALUE, 0, []) for n in range(10)]
    return [RangeEntry(record, 9, None, Disposition.DEAD_LETTER, error=("BadFrame", "")) for record in records]


def test_dead_letters_of_a_range_that_are_more_than_the_producers_queue_holds_are_all_sent():
    queue = SmallQueue(3)
    assert DeadLetterProducer(lambda: queue).send(ten_dead_letters(), "id") == queue.taken == 10


def test_unacknowledged_dead_letters_are_sent_again_by_another_producer():
    silent, well = SmallQueue(10, answers=False), SmallQueue(10)
    producer = DeadLetterProducer(iter([silent, well]).__next__)
    with pytest.raises(DeadLettersFailed, match="10 not acknowledged"):
        producer.send(ten_dead_letters(), "id")
    assert silent.flush(0) == 0, "it would send them too"
    assert producer.send(ten_dead_letters(), "id") == well.taken == 10


class SmallTopic(SmallQueue):
    """Takes no value of the offsets `large`; `local`: the client says so."""

    def __init__(self, large, local, kept):
        super().__init__(100)
        self._large, self._local, self.kept = large, local, kept

    def produce(self, _topic, on_delivery, key, value, headers):
        number = int(dict(headers)["drumline.origin.offset"])
        error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if number in self._large and value is not None else None
        if error and self._local:
            raise KafkaException(error)
        self.kept[number] = (key, value, dict(headers))
        super().produce(_topic, lambda *_: on_delivery(error, None))


@pytest.mark.parametrize("local", [False, True])
def test_a_dead_letter_too_large_for_its_topic_is_sent_without_value(local):
    kept = {}
    producer = DeadLetterProducer(lambda: SmallTopic({3, 5}, local, kept))
    dead_letters = ten_dead_letters()
    for entry in dead_letters:
        entry.record.headers = [("own", b"1")]
    dead_letters[5].record.key = b"k" * 10_000
    for _ in range(2 if local else 1):
        with pytest.raises(DeadLettersFailed, match="MSG_SIZE_TOO_LARGE"):
            producer.send(dead_letters, "id")
    assert producer.send(dead_letters, "id") == 10
    assert [number for number, (_, value, _) in kept.items() if value is None] == [3, 5]
    assert [kept[number][0] for number in (3, 4, 5)] == [b"p", b"p", None]
    for number, (_, value, headers) in kept.items():
        assert headers["drumline.error.code"] == b"BadFrame"
        assert ("own" in headers) == (value is not None) == ("drumline.omitted" not in headers), number


def test_dead_letters_without_value_are_not_replayed():
    without = dataclasses.replace(by_sink(1, 11), value=None)
    assert [entry.origin[2] for entry in due([by_sink(0, 10), without], {})] == [10]


def test_large_dead_letters_are_replayed_a_few_at_a_time(monkeypatch):
    """Their values are in memory until then."""
    monkeypatch.setattr(deadletters_replay, "Producer", lambda _: SmallQueue(2))
    monkeypatch.setattr(deadletters_replay, "CHUNK_BYTES", 2 * len(VALUE))
    reported = []
    back = deadletters_replay.DeadLetterReplay(Settings(), TOPIC, reported.append)
    for n in range(5):
        back.add(by_sink(n, n))
    back.end()
    assert [done["BadEnvelope", 0] for done in reported] == [2, 4, 5]


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_without_a_confirmation_no_record_is_replayed(monkeypatch, answer):
    monkeypatch.setattr(command_dlq, "_read", lambda topic: [by_sink(0, 10)])
    monkeypatch.setattr(deadletters_replay, "ReplayProgress", lambda _: SimpleNamespace(read=lambda *_: {}))
    monkeypatch.setattr(deadletters_replay, "DeadLetterReplay", lambda *_: pytest.fail("it replays"))
    monkeypatch.setattr(command_dlq, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    assert CliRunner().invoke(command_dlq.app, ["replay", TOPIC], input=answer).exit_code == 2


def test_foreign_text_steers_no_terminal(monkeypatch):
    evil = b"\x1b[2J [/bold]"
    message = Message(0, [("drumline.error.code", evil), ("drumline.error.text", evil), ("own", evil)], key=evil)
    monkeypatch.setattr(
        command_dlq, "_read", lambda topic: [parse_dead_letter(message, topic)] if topic == TOPIC else []
    )
    monkeypatch.setattr("drumline.infra.kafka.tail.without_empty", lambda _, names: list(names))
    for command in (["list"], ["show", TOPIC]):
        answer = CliRunner().invoke(command_dlq.app, command)
        assert answer.exit_code == 0, answer.exception
        assert "\x1b" not in answer.output
        assert "\\x1b[2J [/bold]" in answer.output


def test_the_local_kafka_keeps_the_progress_of_a_replay_longer_than_dead_letters():
    lines = (RESOURCES / "server.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    assert int(properties["offsets.retention.minutes"]) * 60_000 > DLQ_RETENTION_MS
