"""Memory of a long run: what is kept of it depends on its ranks and windows, not on its length."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from operator import attrgetter
from types import FunctionType, ModuleType

import numpy as np
import pytest
from support.tables import apply_batch

from drumline.lab.bench.simulated_job import STEP_NS, SimulatedJob, lateness, rank_batches
from drumline.schemas.codec import Codec
from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers import state as job_state
from drumline.streams.stragglers.restore import block_of_key
from drumline.streams.stragglers.sample_state import BUCKET_NS, BUCKETS, DEVICE, HOST, SampleState
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.worker import partition_store
from drumline.streams.worker.compressed_values import CompressedValue
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore

CONFIG = StragglerConfig(window_steps=5, retention_steps=15, history_windows=8)
CODEC = Codec()
BEGIN = 1_700_000_000 * STEP_NS
JOB = SimulatedJob(4, 200, BEGIN)
ORDER = CheckpointOrder(job_state.CHECKPOINT_KINDS, job_state.AT_ONCE_KINDS, job_state.ROW_BYTES, block_of_key)
#: Seconds between two checkpoints.
CHECKPOINT_S = 4
#: Seconds of the run at which it is looked at: at the same place in a window, with all history behind.
SHORT, LONG = 100, 200


def read_back(batch):
    """Return a batch as a worker reads it: with all columns."""
    batch.envelope.setdefault("sent_ns", BEGIN)
    return CODEC.decode(batch.topic, CODEC.encode(batch))


class Stored:
    """A change that the broker has."""

    def __await__(self):
        return iter(())


def write_checkpoint(store):
    async def write():
        changes = store.take_checkpoint()
        await store.write(changes)

    asyncio.run(write())
    store.take_pending()


def memory(*roots):
    """Return the bytes of all objects that can be reached, by type; without code."""
    known, waiting, sizes = set(), [*roots], Counter()
    while waiting:
        value = waiting.pop()
        if id(value) not in known and not isinstance(value, type | ModuleType | FunctionType):
            known.add(id(value))
            sizes[type(value).__name__] += sys.getsizeof(value)
            waiting.extend(gc.get_referents(value))
    return sizes


@pytest.fixture(scope="module")
def small_blocks():
    """Values of four ranks are smaller than what is worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_store, "LEAST_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def kept(small_blocks):
    """Return second -> keys and bytes of each kind that are kept before its batches, and the stage at the end.

    With them, by type, the memory of its state, and of the values with what the store has beside them.
    """
    batches = [*rank_batches(JOB, (Topic.STEP, Topic.DEVICE, Topic.HOST)), *lateness(JOB)]
    store = PartitionStore({}, lambda key, value: Stored(), ORDER)
    stage, counts, now = JobStage(store, CONFIG), {}, BEGIN
    for offset, timed in enumerate(sorted(batches, key=attrgetter("time_ns"))):
        while timed.time_ns - now >= STEP_NS:
            now += STEP_NS
            for verdict in stage.on_tick(now, True):
                stage.mark_sent(verdict)
            second = (now - BEGIN) // STEP_NS
            if second % CHECKPOINT_S == 0:
                write_checkpoint(store)
            counts[second] = *counted(stage), memory(stage.states, store) if second in (SHORT, LONG) else {}
        for verdict in apply_batch(stage, read_back(timed.batch), offset, now):
            stage.mark_sent(verdict)
    return counts, stage


def counted(stage):
    keys, sizes = Counter(), Counter()
    for name, value in stage.store.items():
        keys[name[0]] += 1
        sizes[name[0]] += len(value)
    return keys, sizes


def test_values_do_not_grow_with_the_length_of_the_run(kept):
    counts, _ = kept
    (keys, sizes, _), (later_keys, later_sizes, _) = counts[SHORT], counts[LONG]
    assert keys.keys() >= {*"slcdpv"}
    assert later_keys == keys
    assert {kind: size for kind, size in later_sizes.items() if size > 1.02 * sizes[kind]} == {}


def test_memory_does_not_grow_with_the_length_of_the_run(kept):
    """That of the index in Python objects, and of values that rest, which are compressed."""
    counts, _ = kept
    (*_, sizes), (*_, later_sizes) = counts[SHORT], counts[LONG]
    assert sizes.keys() >= {"Block", CompressedValue.__name__, "Cells", "RankReport", "Source"}
    grown = {kind: (sizes[kind], size) for kind, size in later_sizes.items() if size > 1.02 * sizes[kind] + 200}
    assert grown == {}


def test_samples_end_with_the_oldest_window_that_is_kept(kept):
    _, stage = kept
    [state] = stage.states.values()
    windows = sorted(state.blocks)
    begin = BEGIN + windows[0] * CONFIG.window_steps * STEP_NS
    for samples in state.samples.values():
        for buckets in samples.buckets.values():
            assert 1 < len(buckets) < BUCKETS
            assert min(buckets) == begin // BUCKET_NS
    for window in windows[:-1]:
        assert len(state.device_rows(window, 1)) >= CONFIG.window_steps
        assert len(state.host_rows(window, 1)) >= CONFIG.window_steps


def test_samples_of_a_restarted_worker_end_too(kept):
    _, stage = kept
    [state] = JobStage(dict(stage.store), CONFIG).states.values()
    [old] = stage.states.values()
    assert {window: cells.begin_ns for window, cells in state.blocks.items()} == {
        window: cells.begin_ns for window, cells in old.blocks.items()
    }
    state.drop_before(max(state.blocks))
    begin = BEGIN + max(state.blocks) * CONFIG.window_steps * STEP_NS
    assert all(min(buckets) >= begin // BUCKET_NS for of in state.samples.values() for buckets in of.buckets.values())


@pytest.mark.parametrize(
    ("kind", "name", "large"), [(HOST, "main_wait_ns", 9_000_000_000), (DEVICE, "ecc_uncorrected", 70_000)]
)
@pytest.mark.parametrize("numbers", [(5, -1, 7), (5, 0, -1), (0, 5, -1)], ids=str)
def test_a_number_that_needs_all_of_its_bytes_comes_back(kind, name, large, numbers):
    """Beside others of its bucket, whichever comes first; 0 stands for it."""
    topic, values = Topic.HOST if kind is HOST else Topic.DEVICE, [number or large for number in numbers]
    samples = SampleState({}, "3:job|run", kind)
    batches = [
        timed.batch for timed in rank_batches(SimulatedJob(4, 3, BEGIN), [topic]) if timed.batch.envelope["rank"] == 1
    ]
    for offset, (batch, value) in enumerate(zip(batches, values, strict=True)):
        batch = read_back(batch)
        batch.columns[name] = np.array([value])
        samples.apply(BatchTable.of([batch]), np.array([offset]))
    rows = samples.rows(1, BEGIN, BEGIN + 3 * STEP_NS)
    assert rows.dtype == kind.dtype
    assert rows[name].tolist() == values
    assert rows["time_ns"].tolist() == [BEGIN + step * STEP_NS for step in range(3)]
