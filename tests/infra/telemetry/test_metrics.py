"""The list of metrics: well named, documented, and raised by the documented event."""

import re
import time
from pathlib import Path

import pytest
from support.labs.sink import any_batch, process_id
from support.labs.windows import T0, S, kernels
from support.tables import apply_batch

from drumline.infra.clickhouse.client import TransientError
from drumline.infra.telemetry import metrics
from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import Topic
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.pending_range import PendingRange
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import count_range, failed_dependency
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.stage import ProcessWindows
from drumline.streams.worker.telemetry import Drops, count_drops, count_input

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "reference" / "metrics.md"
RUNBOOK = ROOT / "docs" / "guide" / "runbook.md"
UNITS = (
    "ready",
    "records",
    "batches",
    "rows",
    "seconds",
    "letters",
    "offsets",
    "ranges",
    "ticks",
    "retries",
    "rebalances",
    "recoveries",
)
UNITS += ("partitions", "windows", "bytes", "processes", "folders", "gpus", "events", "units", "halts")
UNITS += ("rings", "operations", "samplings", "series", "exports", "requests")


def value(program, name, **labels):
    return metrics.REGISTRIES[program].get_sample_value(f"drumline_{program}_{name}", labels) or 0.0


@pytest.fixture
def rise():
    """Return a function that measures how much a sample has risen since its first call."""
    first = {}

    def risen(program, name, **labels):
        now = value(program, name, **labels)
        return now - first.setdefault((program, name, *labels.items()), now)

    return risen


def test_names_contain_program_unit_and_kind():
    assert len({metric.name for metric in metrics.METRICS}) == len(metrics.METRICS)
    for metric in metrics.METRICS:
        assert re.fullmatch(rf"drumline_{metric.program}_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.removesuffix("_total").rsplit("_", 1)[1] in UNITS, metric.name
        assert metric.help
        assert "\n" not in metric.help


def test_retries_of_each_kind_are_there_before_the_first():
    documented_kinds = {m.program: m.help.split("of: ")[1] for m in metrics.METRICS if m.labels == ("of",)}
    for program, kinds in documented_kinds.items():
        for kind in re.sub(r" \(.*?\)", "", kinds).split(", "):
            labels = {"of": kind}
            assert metrics.REGISTRIES[program].get_sample_value(f"drumline_{program}_retries_total", labels) is not None
    assert set(documented_kinds) == {"stream", "sink"}


def test_a_registry_holds_the_metrics_of_its_program_and_no_other():
    for program, registry in metrics.REGISTRIES.items():
        names = {family.name for family in registry.collect() if family.name.startswith("drumline_")}
        assert names == {m.name.removesuffix("_total") for m in metrics.METRICS if m.program == program}


def test_the_documentation_shows_the_list_as_it_is():
    assert metrics.table() in DOCS.read_text()


def test_every_reason_that_readiness_may_name_is_documented():
    code = [
        path.read_text()
        for part in ("cli", "lab", "views", "infra", "producers", "sinks", "streams")
        for path in (ROOT / part).rglob("*.py")
    ]
    named = {name for text in code for name in re.findall(r'\.(?:set_reason|probe)\(\s*f?"([^"]+)"', text)}
    section = RUNBOOK.read_text().split("## Reasons in /readyz")[1].split("\n## ")[0]
    documented = {name for line in section.splitlines() if line.startswith("| `") for name in
                  re.findall(r"`(\w+)`", line.split("|")[1])}  # fmt: skip
    assert {"clickhouse", "registry", "root"} <= named <= documented


def entry(offset, disposition, rows=10, error=("", ""), **envelope):
    batch = any_batch(Topic.KERNEL, rows, process_id(1), offset)
    batch.envelope.update({"dropped_before": 0, "sent_ns": 0, **envelope})
    result = RangeEntry(Record(Topic.KERNEL, 0, offset, b"k", None, -1, []), 9, batch, disposition, rows, error=error)
    if disposition is Disposition.DEAD_LETTER:
        result.batch, result.rows = None, 0
    return result


def test_a_stored_range_is_counted_by_what_became_of_its_records(rise):
    now_ns = time.time_ns()
    checks = [
        ("stored_rows_total", {}, 20.0),
        ("input_records_total", {"disposition": "stored"}, 2.0),
        ("input_records_total", {"disposition": "duplicate"}, 1.0),
        ("input_records_total", {"disposition": "dead_letter"}, 1.0),
        ("input_records_total", {"disposition": "expired"}, 1.0),
        ("dead_letters_total", {"reason": "BadFrame"}, 1.0),
        ("dropped_rows_total", {"reason": "source"}, 10.0),
        ("dropped_rows_total", {"reason": "duplicate"}, 10.0),
        ("ranges_total", {}, 1.0),
        ("replayed_ranges_total", {}, 1.0),
        ("delay_seconds_count", {}, 2.0),
        ("delay_seconds_sum", {}, 3.0),
    ]
    for name, labels, _ in checks:
        rise("sink", name, topic="gpu.kernel.v1", **labels)
    entries = [
        entry(0, Disposition.STORED, sent_ns=now_ns - 3 * S, dropped_before=7),
        entry(1, Disposition.STORED, sent_ns=now_ns + 60 * S),  # its clock is ahead
        entry(2, Disposition.DUPLICATE, sent_ns=now_ns, dropped_before=9),
        entry(3, Disposition.DEAD_LETTER, error=("BadFrame", "text that may hold anything")),
        entry(4, Disposition.EXPIRED, sent_ns=now_ns - 9 * S, dropped_before=3),
    ]
    count_range(PendingRange(table(Topic.KERNEL), OffsetRange("id", 0, 0, 4), entries, replay=True), now_ns)
    for name, labels, want in checks:
        assert rise("sink", name, topic="gpu.kernel.v1", **labels) == pytest.approx(want, abs=1e-3), (name, labels)


def test_the_age_of_a_window_at_its_storage_is_measured(rise):
    topic = Topic.KERNEL_FREQUENCY
    batch = any_batch(topic, 5, process_id(1), 0)
    batch.envelope.update({"dropped_before": 0, "sent_ns": T0, "window_end_ns": T0 - 8 * S})
    stored = RangeEntry(Record(topic, 0, 0, b"k", None, -1, []), 9, batch, Disposition.STORED, 5)
    names = ("delay_seconds_sum", "result_delay_seconds_sum")
    assert [rise("sink", name, topic=topic.value) for name in names] == [0, 0]
    count_range(PendingRange(table(topic), OffsetRange("id", 0, 0, 0), [stored]), T0 + 2 * S)
    assert [rise("sink", name, topic=topic.value) for name in names] == pytest.approx([2, 10])


def test_late_and_doubled_batches_are_counted_once_each(rise):
    stage = ProcessWindows({}, WindowConfig(10 * S, 5 * S, 10 * S, 5 * S), KernelFrequency())
    first, late = kernels([(1, 1, "k")], watermark=60), kernels([(1, 1, "k"), (2, 1, "k")], watermark=61)
    first.envelope["sequence"], late.envelope["sequence"] = 0, 1
    counted = Drops()

    def risen():
        return (
            rise("stream", "dropped_rows_total", stage="test", reason="late"),
            rise("stream", "duplicate_records_total", stage="test"),
        )

    risen()
    for offset, batch in enumerate((first, late, late)):
        apply_batch(stage, batch, offset, T0 + 100 * S)
        counted = count_drops("test", stage, counted)
    assert risen() == (2, 1)
    count_drops("test", stage, counted)
    assert risen() == (2, 1)


def test_a_stage_that_resets_its_counts_does_not_lower_the_metric(rise):
    class Forgetful:
        too_old = 5

    rise("stream", "dropped_rows_total", stage="forgetful", reason="late")
    counted = count_drops("forgetful", Forgetful(), Drops())
    Forgetful.too_old = 1
    counted = count_drops("forgetful", Forgetful(), counted)
    Forgetful.too_old = 4
    count_drops("forgetful", Forgetful(), counted)
    assert rise("stream", "dropped_rows_total", stage="forgetful", reason="late") == 8


def test_input_without_a_time_of_sending_has_no_delay(rise):
    batch = kernels([(1, 1, "k")], watermark=2)
    for sent_ns in (0, T0):
        batch.envelope["sent_ns"] = sent_ns
        before = rise("stream", "input_delay_seconds_count", topic=batch.topic)
        count_input(BatchTable.of([batch]), T0 + S)
        assert rise("stream", "input_delay_seconds_count", topic=batch.topic) - before == (sent_ns > 0)


def test_a_retry_names_the_server_it_waits_for():
    assert failed_dependency(TransientError("gone")) == "clickhouse"
    assert failed_dependency(TransientKafkaError("gone")) == "kafka"
