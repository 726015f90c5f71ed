"""A halted worker writes behind its successor: every reader ignores the same records, compacted or not."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from faust.types import TP

from drumline.schemas.epochs import write_epoch
from drumline.streams.worker.changelog_fence import PER_GENERATION, ChangelogFence, next_epoch
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing

FIRST, SECOND = b"first", b"second"
PLACE = TP("s-changelog", 3)


def test_epochs_rise_with_generations_with_restarts_and_over_a_deleted_group():
    assert next_epoch(1, 0) == PER_GENERATION
    assert next_epoch(1, PER_GENERATION) == PER_GENERATION + 1  # restarted under its name: the same generation
    assert next_epoch(2, PER_GENERATION + 1) == 2 * PER_GENERATION
    assert next_epoch(1, 50 * PER_GENERATION) == 50 * PER_GENERATION + 1  # the group was deleted
    assert next_epoch(-1, 0) == 1


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


def test_records_of_an_older_drumline_count():
    """Workers of both versions run during an upgrade: the state of the older ones is no less true."""
    fence = ChangelogFence()
    fence.mark(5, FIRST)
    assert fence.accepts(b"k", None)


class Acknowledged:
    def __await__(self):
        yield from ()


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
    log, closed = [], []

    def sent(record):
        log.append(SimpleNamespace(message=SimpleNamespace(tp=PLACE, topic=PLACE.topic, **record)))
        return Acknowledged()

    async def build(*arguments):
        pass

    async def heartbeat(query):
        return await query()

    async def is_member():
        return app.is_member

    table = Table(sent)
    recovery = SimpleNamespace(
        _build_highwaters=build, active_offsets=Counter(), _generation_id=1, tp_to_table={PLACE: table},
        active_tps={PLACE}, signal_recovery_start=asyncio.Event(),
    )  # fmt: skip
    client = SimpleNamespace(_coordinator=SimpleNamespace(_do_heartbeat=is_member))
    thread = SimpleNamespace(call_thread=heartbeat, _ensure_consumer=lambda: client)
    app = SimpleNamespace(
        tables=SimpleNamespace(recovery=recovery), consumer=SimpleNamespace(_thread=thread), is_member=True
    )

    def fencing():
        result = ChangelogFencing(app, lambda: closed.append(True), lambda future: None)
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
        app=app, recovery=recovery, table=table, log=log, sent=sent, closed=closed, fencing=fencing, recover=recover
    )


def state(key, value, epoch):
    return {"key": key, "value": value, "headers": [write_epoch(epoch)]}


def test_recovery_ignores_a_halted_worker_and_names_the_keys_to_write_again(worker):
    fencing = worker.fencing()
    worker.sent({"key": b"0003|f|epoch", "value": b"former", "headers": [write_epoch(7)]})
    worker.sent(state(b"0003|a", b"old", 7))
    worker.recovery._generation_id = 2
    worker.recover()
    assert worker.closed
    assert asyncio.run(fencing.holds_all())
    epoch = fencing.epoch(PLACE)
    worker.sent(state(b"0003|a", b"new", epoch))
    worker.sent(state(b"0003|a", b"old", 7))
    worker.sent(state(b"0003|b", b"old", 7))
    worker.recovery._generation_id = 3
    worker.recover()
    assert asyncio.run(fencing.holds_all())
    assert worker.table.data == {b"0003|a": b"new"}
    assert fencing.epoch(PLACE) > epoch
    assert fencing.take_stale(PLACE) == {b"0003|a", b"0003|b"}
    assert fencing.take_stale(PLACE) == set()


def test_a_worker_whose_epoch_is_taken_restores_again_unless_the_group_has_removed_it(worker):
    fencing = worker.fencing()
    worker.sent({"key": b"0003|f|epoch", "value": b"former", "headers": [write_epoch(PER_GENERATION)]})
    worker.recover()
    worker.app.is_member = False  # it was halted before it wrote its marker
    assert not asyncio.run(fencing.holds_all())
    assert not worker.recovery.signal_recovery_start.is_set()
    worker.app.is_member = True
    assert not asyncio.run(fencing.holds_all())
    assert worker.recovery.signal_recovery_start.is_set()
    worker.recover()
    assert asyncio.run(fencing.holds_all())
    assert fencing.epoch(PLACE) == PER_GENERATION + 1
