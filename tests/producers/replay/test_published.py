"""Recordings of published rows give back the batches that were published, and say where they are damaged."""

import json
import lzma

import numpy as np
import pytest
from support.recordings import DEMO_RECORDING

from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.published import ROWS, is_published, read_published, write_published
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic


@pytest.fixture(scope="module")
def batches():
    topics = {Topic.COLLECTIVE, Topic.STEP, Topic.DEVICE}
    return [out.batch for out in RecordedJob(DEMO_RECORDING, topics=topics, light=True).batches("run")][:200]


def test_what_is_written_is_read_in_order_of_time(batches, tmp_path):
    assert not is_published(tmp_path)
    write_published(tmp_path, reversed(batches))
    assert is_published(tmp_path)
    read = list(read_published(tmp_path))
    assert [time_ns for time_ns, _ in read] == sorted(int(batch.envelope["sent_ns"]) for batch in batches)
    before = {(b.topic, str(b.envelope)): b for b in batches}
    for _, batch in read:
        written = before.pop((batch.topic, str(batch.envelope)))
        for name, column in written.columns.items():
            np.testing.assert_array_equal(batch.columns[name], column)
            assert batch.columns[name].dtype == column.dtype
    assert not before


def test_a_column_that_is_newer_than_the_recording_has_its_fill_value(batches, tmp_path):
    write_published(tmp_path, [batch for batch in batches if batch.topic == Topic.STEP and batch.rows][:1])
    line = json.loads(lzma.decompress((tmp_path / ROWS).read_bytes()))
    del line["columns"]["gc_ns"]
    (tmp_path / ROWS).write_bytes(lzma.compress(json.dumps(line).encode()))
    ((_, batch),) = read_published(tmp_path)
    assert set(batch.columns["gc_ns"].tolist()) == {-1}


@pytest.mark.parametrize(
    "content", [b"no xz", lzma.compress(b"{}"), lzma.compress(b'{"topic": "gpu.step.v1"'), lzma.compress(b"[]")[:20]]
)
def test_a_damaged_recording_is_named(tmp_path, content):
    (tmp_path / ROWS).write_bytes(content)
    with pytest.raises(BadTrace, match=ROWS):
        list(read_published(tmp_path))
