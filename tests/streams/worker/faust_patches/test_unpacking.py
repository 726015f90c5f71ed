"""No batch takes more of a worker's memory than its bound. This fails too when aiokafka's insides have changed."""

import resource
import sys

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from drumline.infra.kafka.config import UNPACKED_BYTES
from drumline.infra.telemetry import metrics
from drumline.streams.worker.faust_patches.unpacking import limit_unpacking

CODECS = {name: getattr(DefaultRecordBatch, f"CODEC_{name.upper()}") for name in ("none", "gzip", "lz4", "zstd")}
RECORDS = 3
BOMB = bytes(UNPACKED_BYTES // RECORDS)


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    codecs = sys.modules[DefaultRecordBatch.__module__]
    for name in ("gzip_decode", "lz4_decode", "zstd_decode"):
        monkeypatch.setattr(codecs, name, getattr(codecs, name))
    monkeypatch.setattr(fetcher, "PartitionRecords", fetcher.PartitionRecords)
    limit_unpacking()


def batch(codec, first, values):
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for number, value in enumerate(values):
        assert builder.append(number, 1_000, b"key", value, [])
    data = builder.build()
    data[:8] = first.to_bytes(8, "big")
    return bytes(data)


def read(*batches):
    arguments = (TopicPartition("t", 0), MemoryRecords(b"".join(batches)), [], 0, None, None, True, 0)
    records = list(fetcher.PartitionRecords(*arguments))
    return [(record.offset, record.key, record.value) for record in records]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_that_unpacks_to_too_much_is_one_record_without_value(codec):
    unreadable = metrics.STREAM_UNREADABLE.labels("t")._value
    before = unreadable.get()
    bomb = batch(codec, 1, [BOMB] * RECORDS)
    assert len(bomb) < 1 << 18
    records = read(batch(codec, 0, [b"a"]), bomb, batch(codec, 4, [b"b", b"c"]))
    assert records == [(0, b"key", b"a"), (3, None, None), (4, b"key", b"b"), (5, b"key", b"c")]
    assert unreadable.get() - before == 1


@pytest.mark.parametrize("codec", CODECS)
def test_what_fits_is_read_as_it_was(codec):
    values = [BOMB, b"", b"x" * 1_000]
    assert read(batch(codec, 0, values)) == [(n, b"key", value) for n, value in enumerate(values)]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_small_batch_costs_nothing_of_its_bound(codec):
    """A zeroed buffer touched 8,192 pages and took 27 ms of CPU for each batch; the worker fell out of its group."""
    small = batch(codec, 0, [b"a"])
    read(small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        read(small)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 20 * 1_000
