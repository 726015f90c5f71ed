"""Cutting, announcing, crashing and rebuilding, against a model of Kafka and ClickHouse that remembers tokens."""

import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.labs.sink import any_batch
from support.tables import read_one

from drumline.infra.config.settings import Settings, SinkSettings
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.epochs import write_epoch
from drumline.schemas.topics import Topic
from drumline.sinks import commit_cycle as cycle
from drumline.sinks.ranges import partition as partition_module
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.duplicates import StoredBatches
from drumline.sinks.ranges.intent import MAX_BYTES, read_metadata, write_done, write_intent
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.partition import MAX_NAMES_PER_RANGE, RANGE_BYTES, PartitionState
from drumline.sinks.ranges.pending_range import RangeStage
from drumline.sinks.ranges.rebuild import ReplayImpossible
from drumline.sinks.tables.blocks import DAY_NS, MAX_ROWS
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

KERNEL = table(Topic.KERNEL)
#: Content of batches that ClickHouse rejects.
POISON = 3
NOW_MS = time.time_ns() // 10**6


def entry(offset, rows=10, process="p", sequence=None, bad=False, content=1, day=20_000, part=0, ms=NOW_MS):
    record = Record(Topic.KERNEL, 0, offset, b"p", b"x" if bad else None, ms, [], part=part)
    if bad:
        return RangeEntry(record, 1, None, Disposition.DEAD_LETTER, error=("BadFrame", "bad"))
    envelope = {"process_id": process, "sequence": offset if sequence is None else sequence, "rows": rows}
    envelope |= {"job": "job", "run": "run", "sent_ns": 0, "dropped_before": 0}
    at = day * DAY_NS
    disposition = Disposition.STORED if rows else Disposition.EMPTY
    batch, content = Batch(Topic.KERNEL, envelope), content if rows else 0
    return RangeEntry(record, 1, batch, disposition, rows, at, at, content=content)


def state(next_offset=0, **kwargs):
    return PartitionState(KERNEL, 0, "id", next_offset, opened=True, **kwargs)


def know(partition, history=None):
    for identity in partition.identities_to_load():
        partition.duplicates.history[identity] = history or Intervals()


def collect(partition, entries):
    for e in entries:
        partition.take(e, 0.0)
    know(partition)
    partition.duplicates.contents = {place: StoredBatches() for place in partition.contents_to_load()}


class World:
    """Kafka: a log and one committed (offset, metadata). ClickHouse: rows and ledger by token.

    `expired`: positions that the ledger has as such. `until_ms`: what Kafka got by then is too old; it rises.
    """

    def __init__(self, log):
        self.log, self.offset, self.metadata = log, 0, ""
        self.rows, self.ledger, self.expired, self.tokens, self.until_ms = [], {}, set(), set(), 0

    def insert(self, table_name, token, apply):
        if (table_name, token) not in self.tokens:
            self.tokens.add((table_name, token))
            apply()

    def run(self, data):
        """One life of a sink; it may die after any step. True when it has stored everything."""
        _, intent = read_metadata(self.metadata, 0, self.offset)
        partition = state(self.offset, intent=intent)
        while partition.next_offset < len(self.log) or partition.entries:
            ahead = data.draw(st.integers(1, 6), "records taken in")
            if intent is not None:
                ahead = intent.range.last + 1 - partition.next_offset
            for record in self.log[partition.next_offset : partition.next_offset + ahead]:
                for item in record:
                    partition.take(entry(**item), 0.0)
            if not partition.entries:
                return True
            first = partition.entries[0].record.offset
            for identity in partition.identities_to_load() if partition.intent is None else ():
                seen = sorted({s for (o, _), (p, s, _) in self.ledger.items() if p == identity[0] and o < first})
                partition.duplicates.history[identity] = Intervals(seen)
            for process, _, sequence in partition.contents_to_load() if partition.intent is None else ():
                before = [value for (offset, _), value in self.ledger.items() if offset < first]
                stored = [c for p, s, c in before if (p, s) == (process, sequence)]
                contents = partition.duplicates.contents[process, "p", sequence] = StoredBatches()
                for content in stored:
                    contents.add(content or None, "job", "run", 0)
            self.until_ms = data.draw(st.integers(self.until_ms, 3), "oldest that is kept")
            pending = partition.cut(data.draw(st.integers(1, 40), "flush rows"), 0.0, self.until_ms)
            intent = None
            die = data.draw(st.integers(0, 12), "dies after step")
            if not pending.replay:
                self.offset, self.metadata = pending.range.first, write_intent(pending.intent)
            if die == 3:
                return False
            while any(e.content == POISON for e in pending.stored):  # ClickHouse rejects it: nothing is stored
                if pending.records > 1:
                    pending = partition.split(pending)
                else:
                    for e in pending.stored:
                        e.disposition = Disposition.DEAD_LETTER
                self.offset, self.metadata = pending.range.first, write_intent(pending.intent)
                if data.draw(st.integers(0, 12), "dies after a split") == 3:
                    return False
            stored = [(*e.record.place[2:], row) for e in pending.stored for row in range(e.rows)]
            self.insert("rows", pending.range.token, lambda new=stored: self.rows.extend(new))
            if die == 4:
                return False
            entries = {
                (e.record.offset, e.record.part): (
                    e.batch.envelope["process_id"],
                    e.batch.envelope["sequence"],
                    e.content,
                )
                for e in pending.entries
                if e.disposition in (Disposition.STORED, Disposition.EMPTY)
            }
            old = {e.record.position for e in pending.entries if e.disposition is Disposition.EXPIRED}
            self.insert("ledger", pending.range.token, lambda new=entries: self.ledger.update(new))
            self.insert("expired", pending.range.token, lambda new=old: self.expired.update(new))
            if die == 5:
                return False
            self.offset, self.metadata = pending.range.last + 1, write_done("id")
            if die == 6:
                return False
        return True


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_killed_after_any_step_and_cut_anyhow_every_batch_is_stored_once(data):
    """But for those that are too old when they are taken: they are not stored, whatever a repeated attempt's time."""
    batch = st.fixed_dictionaries(
        {
            "rows": st.integers(0, 12), "process": st.sampled_from("abc"), "sequence": st.integers(0, 8),
            "bad": st.booleans(), "content": st.integers(1, POISON),
        }
    )  # fmt: skip
    record = st.tuples(st.lists(batch, min_size=1, max_size=3), st.integers(1, 4))
    records = data.draw(st.lists(record, min_size=1, max_size=20))
    log = [
        [{**part, "offset": offset, "part": number + (len(parts) > 1), "ms": ms} for number, part in enumerate(parts)]
        for offset, (parts, ms) in enumerate(records)
    ]
    world = World(log)
    for _ in range(60):
        if world.run(data):
            break
    else:
        return  # it died each time
    want, seen = [], set()
    for parts in log:
        new = {}
        for part in parts:
            place = part["process"], part["sequence"], part["content"]
            is_expired = entry(**part).record.position in world.expired
            assert not is_expired or (part["ms"] <= world.until_ms and place not in seen and part["rows"])
            if not part["bad"] and part["rows"] and place not in seen and not is_expired:
                new.setdefault(place, part)
        if POISON not in {part["content"] for part in new.values()}:  # a record goes as a whole
            seen |= set(new)
            want += [(entry(**part).record.position, row) for part in new.values() for row in range(part["rows"])]
    assert sorted(world.rows) == want


def test_a_range_is_cut_at_the_rows_asked_for_and_the_rest_stays():
    partition = state()
    collect(partition, [entry(i, rows=40) for i in range(10)])
    pending = partition.cut(100, 5.0)
    assert (pending.range.first, pending.range.last) == (0, 2)
    assert partition.rows == 280
    assert partition.cut(10**9, 5.0).range.last == 9
    assert not partition.due(100.0, 1, 0.0)


def test_a_range_is_cut_at_its_bytes_and_the_rest_stays():
    """Four records of a quarter fit; names and evidence may make few rows large."""
    partition = state()
    collect(partition, [replace(entry(i), size=RANGE_BYTES // 4) for i in range(6)])
    assert partition.due(0.0, 10**9, 1e9)
    assert partition.cut(10**9, 5.0).range.last == 3
    assert partition.bytes == RANGE_BYTES // 2
    assert not partition.due(0.0, 10**9, 1e9)
    collect(partition, [replace(entry(6), size=2 * RANGE_BYTES)])
    assert [partition.cut(10**9, 5.0).range.last for _ in range(2)] == [5, 6]  # alone, as it cannot be cut


@pytest.mark.parametrize("bad", [False, True])
def test_partitions_that_fill_memory_together_are_written_whatever_their_rows(bad):
    """Neither rows, nor the bytes of one partition, nor time would be up."""
    states = {(Topic.KERNEL, number): state() for number in range(4)}
    kafka = SimpleNamespace(states=states)
    commit_cycle = cycle.CommitCycle(Settings(sink=SinkSettings(flush_s=1e9)), kafka, None, None, SinkCounts())
    for number, partition in enumerate(states.values()):
        commit_cycle.cut(lambda: False)
        assert not commit_cycle.ranges, number
        collect(partition, [replace(entry(0, process="", bad=bad), size=cycle.PRESSURE * RANGE_BYTES // 4)])
    commit_cycle.cut(lambda: False)
    assert len(commit_cycle.ranges) == 4
    assert sum(partition.bytes for partition in states.values()) == 0
    commit_cycle.close()


def test_no_insert_has_more_names_than_rollups_take():
    """1 million names in 245 records, 45,000 in an insert, exceeded the memory of an engine with 1.2 GB."""
    partition = state()
    entries = [entry(offset) for offset in range(10)]
    for collected in entries:
        collected.batch.envelope["names"] = [f"kernel {i}" for i in range(MAX_NAMES_PER_RANGE // 4)]
    collect(partition, entries)
    assert [len(partition.cut(10**9, 0.0).entries) for _ in range(3)] == [4, 4, 2]


def test_no_insert_is_larger_than_clickhouse_writes_at_once():
    partition = state()
    collect(partition, [entry(i, rows=400_000) for i in range(4)])
    cuts = []
    while partition.entries:
        cuts.append(sum(e.rows for e in partition.cut(MAX_ROWS, 0.0).entries))
    assert cuts == [800_000, 800_000]


def test_no_insert_touches_too_many_days():
    partition = state()
    collect(partition, [entry(i, day=20_000 + i) for i in range(100)])
    assert len(partition.cut(10**9, 0.0).entries) == 62


def test_intents_never_outgrow_kafkas_metadata():
    partition = state()
    collect(partition, [entry(i, bad=i % 2 == 0) for i in range(4_000)])
    total = 0
    while partition.entries:
        pending = partition.cut(10**9, 0.0)
        assert len(write_intent(pending.intent)) <= MAX_BYTES
        total += len(pending.entries)
    assert total == 4_000


def test_records_behind_are_not_taken_in_again():
    partition = state(5)
    assert not partition.take(entry(4), 0.0)
    assert partition.take(entry(5), 0.0)
    assert not partition.take(entry(5), 0.0)


def test_the_parts_of_a_record_share_a_range_and_each_has_its_disposition():
    """As an agent sends them again that was killed: the parts are cut otherwise."""
    first = [entry(0, sequence=number, part=number + 1) for number in range(3)]
    again = [entry(1, sequence=number, part=number) for number in (1, 2, 3, 4)]
    bad = [entry(2, bad=True, part=1), entry(2, sequence=9, part=2)]
    partition = state()
    collect(partition, [*first, *again, *bad, entry(3, sequence=9)])
    assert partition.cut(1, 0.0).records == 1
    pending = partition.cut(10**9, 0.0)
    assert [str(e.disposition) for e in pending.entries] == [
        *("duplicate", "duplicate", "stored", "stored"), *("dead_letter", "stored"), "duplicate",
    ]  # fmt: skip
    _, intent = read_metadata(write_intent(pending.intent), 0, pending.range.first)
    assert intent == pending.intent
    replayed = state(1, intent=intent)
    for e in (*again, *bad, entry(3, sequence=9)):
        replayed.take(replace(e, disposition=Disposition.STORED) if e.batch else e, 0.0)
    rebuilt = replayed.cut(1, 0.0)
    assert [e.disposition for e in rebuilt.entries] == [e.disposition for e in pending.entries]


def test_a_record_whose_parts_do_not_fit_into_an_intent_is_classified_again_with_the_next_range():
    partition = state()
    scattered = [entry(i, bad=i % 2 == 0, content=i + 1) for i in range(1_600)]
    parts = [entry(1_600, sequence=5_000 + i // 2, content=7 + i % 2 * (i % 3), part=i + 1) for i in range(255)]
    collect(partition, [*scattered, *parts])
    dispositions = []
    while partition.entries:
        know(partition)
        partition.duplicates.contents = {place: StoredBatches() for place in partition.contents_to_load()}
        pending = partition.cut(10**9, 0.0)
        dispositions += [e.disposition for e in pending.entries if e.record.part]
    unlimited = state()
    collect(unlimited, parts)
    assert dispositions == [e.disposition for e in unlimited.cut(10**9, 0.0).entries]


def intent_of(entries):
    partition = state()
    collect(partition, entries)
    return partition.cut(10**9, 0.0).intent


def test_a_replay_classifies_as_the_intent_does_even_if_it_would_decide_otherwise_now():
    intent = intent_of([entry(0), entry(1, bad=True), entry(2, sequence=0), entry(3)])
    partition = state(intent=intent)
    for e in (entry(0), entry(1), entry(2, sequence=0), entry(3), entry(4)):  # offset 1 decodes now
        partition.take(e, 0.0)
    assert partition.due(0.0, 10**9, 10**9)
    pending = partition.cut(1, 0.0)
    assert [e.disposition for e in pending.entries] == [
        Disposition.STORED,
        Disposition.DEAD_LETTER,
        Disposition.DUPLICATE,
        Disposition.STORED,
    ]
    assert pending.intent == intent
    assert [e.record.offset for e in partition.entries] == [4]


@pytest.mark.parametrize(
    "again",
    [
        [entry(0), entry(2)],  # one is gone
        [entry(0), entry(1), entry(2, rows=9)],  # one has other rows
        [entry(0), entry(1, bad=True), entry(2)],  # one does not decode any more
    ],
)
def test_a_range_that_cannot_be_rebuilt_stops_the_sink(again):
    partition = state(intent=intent_of([entry(0), entry(1), entry(2)]))
    for e in again:
        partition.take(e, 0.0)
    with pytest.raises(ReplayImpossible, match="the intent"):
        partition.cut(1, 0.0)


def test_compaction_may_thin_out_a_range_with_a_committed_intent():
    intent = intent_of([entry(0), entry(1), entry(2)])
    partition = state(intent=intent, compacted=True)
    partition.take(entry(2), 0.0)
    assert partition.cut(1, 0.0).range == intent.range


def test_a_rejected_range_is_halved_and_ranges_grow_again_once_one_is_stored():
    partition = state()
    collect(partition, [entry(i, sequence=0 if i == 6 else i) for i in range(8)])
    pending = partition.split(partition.cut(10**9, 0.0))
    assert (pending.range.first, pending.range.last, pending.stage) == (0, 3, RangeStage.DEAD_LETTERS_SENT)
    assert partition.due(0.0, 10**9, 10**9), "the rest waits for nothing"
    sizes = []
    while partition.entries:
        partition.widen()
        partition.limit //= 2  # the first is rejected again
        know(partition)
        sizes.append([e.disposition for e in partition.cut(10**9, 0.0).entries])
    assert sizes == [[Disposition.STORED] * 4], "the original of the duplicate is not stored yet"
    for _ in range(30):
        partition.widen()
    assert partition.limit == 0


def test_records_that_name_no_process_are_never_duplicates():
    partition = state()
    collect(partition, [entry(i, process="", sequence=0) for i in range(3)])
    assert not any(e.disposition is Disposition.DUPLICATE for e in partition.cut(10**9, 0.0).entries)


def result(offset, epoch, source="windows:0"):
    """A record of a derived topic, as a worker with this epoch publishes it."""
    headers = [] if epoch is None else [write_epoch(epoch, source)]
    batch = any_batch(Topic.KERNEL_FREQUENCY, 2, "p", offset)
    return read_one(Record(Topic.KERNEL_FREQUENCY, 0, offset, b"p", Codec().encode(batch), 0, headers), RESULT)


RESULT = table(Topic.KERNEL_FREQUENCY)
#: A worker is halted behind its first result, and wakes behind its successor's; offset 3 is of no worker.
HALTED = [(0, 5), (1, 6), (2, 5), (3, None), (4, 5, "windows:1"), (5, 7), (6, 6)]


def results_partition(**kwargs):
    return PartitionState(RESULT, 0, "id", 0, opened=True, **kwargs)


def test_results_of_a_halted_worker_are_fenced_and_a_replay_fences_the_same():
    partition = results_partition()
    for item in HALTED:
        partition.take(result(*item), 0.0)
    pending = partition.cut(10**9, 0.0)
    assert [e.record.offset for e in pending.entries if e.disposition is Disposition.FENCED] == [2, 6]
    assert [e.record.offset for e in pending.stored] == [0, 1, 3, 4, 5]
    assert partition.epochs == {"windows:0": 7, "windows:1": 5}

    _, intent = read_metadata(write_intent(pending.intent), 0, 0)
    again = results_partition(intent=intent, epochs={"windows:1": 9})  # whatever it would decide now
    for item in [*HALTED, (7, 6)]:
        again.take(result(*item), 0.0)
    replayed = again.cut(10**9, 0.0)
    assert [e.disposition for e in replayed.entries] == [e.disposition for e in pending.entries]
    assert replayed.intent == pending.intent
    assert [e.disposition for e in again.cut(10**9, 0.0).entries] == [Disposition.FENCED]


def test_the_rest_of_a_range_that_is_split_is_fenced_as_before():
    partition = results_partition()
    for item in HALTED:
        partition.take(result(*item), 0.0)
    whole = partition.cut(10**9, 0.0)
    expected = [e.disposition for e in whole.entries]
    half = partition.split(whole)
    rest = partition.cut(10**9, 0.0), partition.cut(10**9, 0.0)
    assert [e.disposition for part in (half, *rest) for e in part.entries] == expected


def test_producers_cannot_fence_records():
    record = Record(Topic.KERNEL, 0, 0, b"p", Codec().encode(any_batch(Topic.KERNEL, 2, "p", 0)), 0, [])
    record.headers.append(write_epoch(5, "windows:0"))
    assert read_one(record, KERNEL).source == ""


def test_many_fenced_results_do_not_outgrow_an_intent():
    partition = results_partition(epochs={"windows:0": 9})
    template = result(0, 5)
    for offset in range(0, 2_200, 2):
        record = replace(template.record, offset=offset)
        partition.take(replace(template, record=record), 0.0)
    while partition.entries:
        pending = partition.cut(10**9, 0.0)
        assert len(write_intent(pending.intent)) <= MAX_BYTES
        assert len(pending.intent.fenced) == len(pending.entries)


def doubled(count, chance):
    """A partition whose records and parts are doubled ones, or bad, by chance."""
    partition, offset = state(), 0
    entries = [entry(0, sequence=0)]
    while len(entries) < count:
        offset += chance.choice([1, 1, 1, 2, 300])
        for part in range(1, 9) if chance.random() < 0.5 else (0,):
            sequence = 0 if chance.random() < 0.7 else len(entries)
            entries.append(entry(offset, sequence=sequence, bad=chance.random() < 0.1, part=part))
    collect(partition, entries)
    return partition


@pytest.mark.parametrize("seed", range(3))
def test_ranges_are_as_long_as_intents_allow_though_few_are_written(seed, monkeypatch):
    calls, ranges = [0], []
    monkeypatch.setattr(
        partition_module, "write_intent", lambda of: (calls.__setitem__(0, calls[0] + 1), write_intent(of))[1]
    )
    for size in (partition_module._POSITION_BYTES, MAX_BYTES):  # the second time, no position surely fits
        monkeypatch.setattr(partition_module, "_POSITION_BYTES", size)
        calls[0], partition = 0, doubled(3_000, random.Random(seed))
        cuts = []
        while partition.entries:
            collect(partition, [])
            cuts.append(partition.cut(10**9, 0.0))
        assert all(len(write_intent(pending.intent)) <= MAX_BYTES for pending in cuts)
        ranges.append(([pending.range for pending in cuts], calls[0]))
    assert ranges[0][0] == ranges[1][0]
    assert len(ranges[0][0]) > 1
    assert ranges[0][1] < ranges[1][1] / 2
