"""Every field has bounds: no real record comes near them, and a record outside is rejected, naming the field."""

import uuid

import numpy as np
import pytest
from support import recordings

from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch, encode
from drumline.schemas.bounds.limits import AHEAD_NS, DAY_NS, KINDS, PAST_NS, bound, bounds, max_bytes
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.errors import OutOfBounds
from drumline.schemas.model import has_schema, model
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.memcpy_bandwidth import MemcpyBandwidth
from drumline.streams.windows.stage import ProcessWindows

CODEC = Codec()
WITH_SCHEMA = [topic for topic in Topic if has_schema(topic)]
NOW_MS = 1_795_000_000_000
NOW = NOW_MS * 1_000_000


def sent(topic, rows=1, columns=None, **envelope):
    """A Kafka value of any content, written as a client of any language would."""
    dictionaries = {name: ["a"] for name in model(topic).dictionaries}
    times = {name: np.full(rows, NOW) for name in ("start_ns", "gpu_start_ns", "time_ns")}
    given = {name: values for name, values in times.items() if any(c.name == name for c in model(topic).columns)}
    batch = Batch(topic, {"rows": rows, **dictionaries, **envelope}, given | (columns or {}))
    return encode(model(topic), batch, header(CODEC.registry.id_of(topic)))


def fault(topic, value):
    with pytest.raises(OutOfBounds) as raised:
        CODEC.decode(topic, value, NOW_MS)
    assert raised.value.topic == topic
    assert raised.value.reason == "out_of_bounds"
    return raised.value


@pytest.mark.parametrize("topic", WITH_SCHEMA)
def test_every_field_has_a_bound_and_its_default_is_inside(topic):
    assert list(bounds(topic)) == list(model(topic).fields)
    for name, kind in model(topic).envelope.items():
        limits = bound(topic, name)
        assert (limits.length > 0) == ("string" in kind), name
        assert (limits.items > 0) == ("<" in kind), name
        assert limits.low < limits.high or "string" in kind, name
        if kind in ("int", "array<int>"):  # decode() leaves Avro's range of them to the bounds
            assert limits.low >= -(1 << 31), name
            assert limits.high < 1 << 31, name
    CODEC.decode(topic, sent(topic), NOW_MS)
    CODEC.decode(topic, sent(topic, rows=0), NOW_MS)


@pytest.mark.parametrize("topic", WITH_SCHEMA)
def test_numbers_of_the_envelope_outside_their_bounds_are_rejected(topic):
    widths = {"int": 1 << 31, "long": 1 << 63}
    for name, kind in model(topic).envelope.items():
        limits, width = bound(topic, name), widths.get(kind, 0)
        outside = [number for number in (limits.low - 1, limits.high + 1) if -width <= number < width]
        for number in outside if name != "rows" else ():
            assert fault(topic, sent(topic, **{name: int(number)})).field == name


@pytest.mark.parametrize("topic", [topic for topic in WITH_SCHEMA if model(topic).columns])
def test_numbers_of_columns_outside_their_bounds_are_rejected(topic):
    for column in (column for column in model(topic).columns if not column.dictionary):
        limits = bound(topic, column.name)
        if column.dtype.kind == "f":
            outside = [limits.low * 2 - 1, limits.high * 2, np.nan, np.inf]
        else:
            width = np.iinfo(column.dtype)
            outside = [n for n in (limits.low - 1, int(limits.high) + 1) if width.min <= n <= width.max]
        for number in outside:
            values = np.full(3, NOW if limits.is_time else 0).astype(column.dtype)
            values[1] = number
            assert fault(topic, sent(topic, 3, {column.name: values})).field == column.name


def test_an_error_names_the_field_and_its_limit_and_never_the_content():
    error = fault(Topic.KERNEL, sent(Topic.KERNEL, names=["secret" * 20_000]))
    assert str(error) == "gpu.kernel.v1.names: a name of more than 65536 characters"
    error = fault(Topic.COLLECTIVE, sent(Topic.COLLECTIVE, columns={"ordinal": [-10]}))
    assert str(error) == "gpu.collective.v1.ordinal: a number below 0"


@pytest.mark.parametrize(
    ("topic", "content", "field"),
    [
        pytest.param(Topic.KERNEL, {"names": ["k" * 100_000]}, "names", id="a kernel name of 100 kB"),
        pytest.param(Topic.KERNEL, {"names": ["k" * 10_000_000]}, "", id="a record of 10 MB"),
        pytest.param(Topic.KERNEL, {"job": "j" * 200_000}, "job", id="a job name of 200 kB"),
        pytest.param(Topic.PROCESS, {"labels": {"k": "x" * 70_000}}, "labels", id="a label of 70 kB"),
        pytest.param(Topic.STRAGGLER, {"rows": 120, "evidence": ["{" * 8_000_000]}, "evidence", id="evidence of 8 MB"),
        pytest.param(
            Topic.STRAGGLER, {"rows": 16_000, "evidence": ["{" * 60_000]}, "evidence_json", id="evidence in all rows"
        ),
        pytest.param(Topic.STEP, {"rows": 30_000}, "", id="30,000 windows"),
        pytest.param(Topic.STEP, {"rows": 9_000}, "rows", id="9,000 windows"),
        pytest.param(Topic.COLLECTIVE, {"rows": 300_000}, "", id="300,000 chunks"),
        pytest.param(Topic.LATENESS, {"rank_list": list(range(70_000))}, "rank_list", id="70,000 ranks"),
        pytest.param(Topic.LATENESS, {"kind_steps": [1 << 62]}, "kind_steps", id="a step of a kind"),
    ],
)
def test_content_that_takes_memory_or_time_is_rejected(topic, content, field):
    assert fault(topic, sent(topic, **content)).field == field


@pytest.mark.parametrize(
    ("topic", "field", "at"),
    [
        (Topic.KERNEL, "start_ns", NOW + AHEAD_NS + 2_000_000),
        (Topic.KERNEL, "start_ns", NOW - PAST_NS - 2_000_000),
        (Topic.DEVICE, "time_ns", NOW + 31 * DAY_NS),
        (Topic.KERNEL_FREQUENCY, "window_start_ns", NOW - 20_000 * DAY_NS),
        (Topic.KERNEL, "watermark_ns", NOW + 2 * DAY_NS),
        (Topic.PROCESS, "start_ns", NOW + 2 * DAY_NS),
    ],
)
def test_times_far_from_the_brokers_are_rejected(topic, field, at):
    is_column = any(column.name == field for column in model(topic).columns)
    value = sent(topic, columns={field: [at]}) if is_column else sent(topic, **{field: at})
    error = fault(topic, value)
    assert error.field == field
    assert "Kafka took the record in" in error.detail
    CODEC.decode(topic, value)  # without the broker's time only ClickHouse's limits count
    CODEC.decode(topic, value, -1)


def test_a_process_may_be_older_than_rows():
    CODEC.decode(Topic.PROCESS, sent(Topic.PROCESS, start_ns=NOW - 5_000 * DAY_NS), NOW_MS)


def test_a_record_that_was_accepted_before_decodes_without_bounds():
    value = sent(Topic.COLLECTIVE, columns={"ordinal": [-10]}, job="j" * 3_000_000)
    assert len(value) > max_bytes(Topic.COLLECTIVE)
    assert CODEC.decode(Topic.COLLECTIVE, value, NOW_MS, bounded=False).columns["ordinal"].tolist() == [-10]


def test_lists_that_belong_together_have_equal_lengths():
    lists = {name: [0] for name in KINDS}
    CODEC.decode(Topic.LATENESS, sent(Topic.LATENESS, **lists), NOW_MS)
    for name in KINDS[1:]:
        assert fault(Topic.LATENESS, sent(Topic.LATENESS, **lists | {name: [0, 0]})).field == name


def test_the_largest_honest_records_are_inside():
    """A verdict and a lateness of 16,384 ranks, and a kernel with the longest name that a decoder reads."""
    ranks = np.arange(16_384, dtype="<i4")
    hosts = [f"host-{uuid.UUID(int=i)}.example.com" for i in range(2_048)]
    places = (ranks // 8).astype("<u4")
    shared = {"world_size": 16_384, "hosts": hosts}
    evidence = [f'{{"clock_reasons": ["sw_power_cap"], "rank": {rank}, "{"x" * 400}": 1}}' for rank in ranks.tolist()]
    columns = {"rank": ranks, "host": places, "evidence_json": ranks.astype("<u4")}
    CODEC.decode(Topic.STRAGGLER, sent(Topic.STRAGGLER, 16_384, columns, evidence=evidence, **shared), NOW_MS)
    columns = {"rank": ranks, "host": places, "step": np.full(16_384, 10**12)}
    CODEC.decode(Topic.LATENESS, sent(Topic.LATENESS, 16_384, columns, rank_list=ranks.tolist(), **shared), NOW_MS)
    CODEC.decode(Topic.KERNEL, sent(Topic.KERNEL, names=["n" * 16_384]), NOW_MS)


def decode_all(folder, topics=None):
    """Decode every record of a recording and every result, each at the time at which it was sent; return the topics."""
    recorded = [(out.time_ns, out.batch) for out in RecordedJob(folder, topics=topics).batches()]
    straggler, windows = StragglerConfig(window_steps=5), WindowConfig()
    stages = [
        ((Topic.COLLECTIVE,), CommunicatorStage({}, straggler)),
        ((Topic.LATENESS, Topic.STEP, Topic.DEVICE, Topic.HOST), JobStage({}, straggler)),
        ((Topic.KERNEL,), ProcessWindows({}, windows, KernelFrequency())),
        ((Topic.MEMCPY,), ProcessWindows({}, windows, MemcpyBandwidth())),
    ]
    derived = [(0, batch) for batch in results(recorded, stages, straggler.idle_ns)]
    for time_ns, batch in [*recorded, *derived]:
        CODEC.decode(batch.topic, CODEC.encode(batch), (time_ns or batch.envelope["sent_ns"]) // 1_000_000 + 1)
    return {batch.topic for _, batch in [*recorded, *derived]}


def test_a_recording_and_its_results_are_inside():
    assert decode_all(recordings.folder("fusion"))


@pytest.mark.long
@pytest.mark.parametrize("folder", recordings.folders().values(), ids=lambda folder: folder.name)
def test_every_recording_and_its_results_are_inside(folder):
    assert decode_all(folder)
