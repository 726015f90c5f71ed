"""A halted worker writes behind its successor: every reader ignores the same records, compacted or not."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from faust.types import TP

from drumline.schemas.epochs import write_epoch
from drumline.schemas.topics import Topic
from drumline.streams.worker.faust_patches.changelog_fence import ChangelogFence, next_epoch
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing

FIRST, SECOND = b"first", b"second"
PLACE = TP("s-changelog", 3)
NOW_MS = 1_760_000_000_000


def test_epochs_are_times_and_rise_where_the_clock_does_not():
    assert next_epoch(NOW_MS, 0) == NOW_MS
    assert next_epoch(NOW_MS, NOW_MS) == NOW_MS + 1


def test_what_follows_a_marker_with_a_lower_epoch_does_not_count():
    fence = ChangelogFence()
    fence.mark(5, FIRST)
    assert fence.accepts(b"k", 5)
    fence.mark(6, SECOND)  # and wrote nothing yet
    assert not fence.accepts(b"k", 5)
    assert not fence.accepts(b"deleted", 5)
    assert fence.accepts(b"k", 6)
    assert (fence.stale, fence.fenced) == ({b"deleted"}, 2)


def test_of_two_markers_with_one_epoch_the_first_one_counts():
    fence = ChangelogFence()
    fence.mark(5, FIRST)
    fence.mark(5, SECOND)
    assert fence.writer == FIRST
    fence.mark(4, SECOND)  # one that was halted before it wrote its marker
    assert (fence.epoch, fence.writer) == (5, FIRST)


def test_a_compacted_marker_still_fences():
    fence = ChangelogFence()
    assert fence.accepts(b"k", 6)
    assert not fence.accepts(b"j", 5)
    fence.mark(6, FIRST)
    assert fence.writer == b""


def test_records_without_an_epoch_count():
    """No halted worker wrote them."""
    fence = ChangelogFence()
    fence.mark(5, FIRST)
    assert fence.accepts(b"k", None)


class Acknowledged:
    def __await__(self):
        yield from ()


class Clock:
    """The worker's clock: wrong until an acknowledgement brings the broker's time."""

    now_ms, wrong_ms, skew_s = NOW_MS, 0, None

    def __call__(self):
        return self.now_ms * 1_000_000

    def watch(self, sent):
        pass


class Table:
    """A table whose applied records are in `data`."""

    def __init__(self, sent):
        self.data = {}
        self.changelog_topic = SimpleNamespace(send_soon=lambda **record: sent(record))

    def apply_changelog_batch(self, events):
        self.data.update((event.message.key, event.message.value) for event in events)


@pytest.fixture
def worker():
    """A fencing and its app; `sent` is the changelog, `events` appends to it as another writer does."""
    log, closed, clock = [], [], Clock()

    def sent(record):
        log.append(
            SimpleNamespace(
                message=SimpleNamespace(tp=PLACE, topic=PLACE.topic, timestamp=clock.now_ms / 1e3, **record)
            )
        )
        return Acknowledged()

    async def build(*arguments):
        pass

    async def heartbeat(query):
        return await query()

    async def tick(topic, *arguments):
        assert topic == Topic.TICK
        return acknowledged()

    async def acknowledged():
        clock.skew_s, clock.now_ms = 0.0, clock.now_ms - clock.wrong_ms

    async def is_member():
        return app.is_member

    table = Table(sent)
    recovery = SimpleNamespace(
        _build_highwaters=build, active_offsets=Counter(), tp_to_table={PLACE: table},
        active_tps={PLACE}, signal_recovery_start=asyncio.Event(),
    )  # fmt: skip
    rejoins = []
    coordinator = SimpleNamespace(_do_heartbeat=is_member, request_rejoin=lambda: rejoins.append(True))
    client = SimpleNamespace(_coordinator=coordinator)
    loop = SimpleNamespace(call_soon_threadsafe=lambda call: call())
    thread = SimpleNamespace(call_thread=heartbeat, _ensure_consumer=lambda: client, thread_loop=loop)
    app = SimpleNamespace(
        tables=SimpleNamespace(recovery=recovery), consumer=SimpleNamespace(_thread=thread), is_member=True,
        producer=SimpleNamespace(send=tick),
    )  # fmt: skip

    def fencing():
        result = ChangelogFencing(app, lambda: closed.append(True), clock)
        result.guard(table)
        result.watch()
        return result

    def recover():
        """As Faust does: build highwaters, then read what is there."""
        asyncio.run(recovery._build_highwaters(None, {PLACE}, {}, "active"))
        at = recovery.active_offsets[PLACE]
        table.apply_changelog_batch(log[at or 0 :])
        recovery.active_offsets[PLACE] = len(log)

    recovery.active_offsets[PLACE] = None
    return SimpleNamespace(
        app=app,
        clock=clock,
        recovery=recovery,
        rejoins=rejoins,
        table=table,
        log=log,
        sent=sent,
        closed=closed,
        fencing=fencing,
        recover=recover,
    )


def state(key, value, epoch):
    return {"key": key, "value": value, "headers": [write_epoch(epoch)]}


def test_recovery_ignores_a_halted_worker_and_names_the_keys_to_write_again(worker):
    fencing = worker.fencing()
    worker.sent({"key": b"0003|f|epoch", "value": b"former", "headers": [write_epoch(7)]})
    worker.sent(state(b"0003|a", b"old", 7))
    worker.recover()
    assert worker.closed
    assert asyncio.run(fencing.holds_all())
    epoch = fencing.epoch(PLACE)
    worker.sent(state(b"0003|a", b"new", epoch))
    worker.sent(state(b"0003|a", b"old", 7))
    worker.sent(state(b"0003|b", b"old", 7))
    worker.recover()
    assert asyncio.run(fencing.holds_all())
    assert worker.table.data == {b"0003|a": b"new"}
    assert fencing.epoch(PLACE) > epoch
    assert fencing.take_stale(PLACE) == {b"0003|a", b"0003|b"}
    assert fencing.take_stale(PLACE) == set()


def test_state_of_a_run_that_is_named_like_a_marker_is_recovered(worker):
    worker.fencing()
    key = b"0003|p|process|x|f|epoch"
    worker.sent(state(key, b"kept", 7))
    worker.recover()
    assert worker.table.data == {key: b"kept"}


def test_a_worker_whose_epoch_is_taken_restores_again_unless_the_group_has_removed_it(worker):
    fencing = worker.fencing()
    worker.sent({"key": b"0003|f|epoch", "value": b"former", "headers": [write_epoch(NOW_MS)]})
    worker.recover()
    worker.app.is_member = False  # it was halted before it wrote its marker, or no coordinator answers
    assert not asyncio.run(fencing.holds_all())
    assert not worker.recovery.signal_recovery_start.is_set()
    assert worker.rejoins == [True], "nothing else might start the next recovery"
    worker.app.is_member = True
    assert not asyncio.run(fencing.holds_all())
    assert worker.recovery.signal_recovery_start.is_set()
    assert worker.rejoins == [True]
    worker.recover()
    assert asyncio.run(fencing.holds_all())
    assert fencing.epoch(PLACE) == NOW_MS + 1


def test_after_changelogs_and_group_are_deleted_epochs_still_rise(worker):
    """The sink's ledger knows the epochs of before: lower ones would be fenced for ever."""
    fencing = worker.fencing()
    worker.recover()
    before = fencing.epoch(PLACE)
    worker.log.clear()
    worker.recovery.active_offsets[PLACE] = None
    worker.clock.now_ms += 60_000
    worker.recover()
    assert fencing.epoch(PLACE) == before + 60_000


def test_the_first_epoch_has_the_broker_s_time_not_this_host_s(worker):
    worker.clock.now_ms, worker.clock.wrong_ms = NOW_MS + 7_200_000, 7_200_000
    fencing = worker.fencing()
    worker.recover()
    assert fencing.epoch(PLACE) == NOW_MS


def test_a_forged_epoch_of_years_ahead_is_ignored(worker):
    fencing, forged = worker.fencing(), NOW_MS + 2 * 86_400_000
    worker.sent({"key": b"0003|f|epoch", "value": b"forger", "headers": [write_epoch(forged)]})
    worker.sent(state(b"0003|a", b"forged", forged))
    worker.recover()
    assert asyncio.run(fencing.holds_all())
    assert fencing.epoch(PLACE) == NOW_MS
    assert worker.table.data == {}
    assert fencing.take_stale(PLACE) == {b"0003|a"}
