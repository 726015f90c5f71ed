"""Real recordings: what comes out of them, row by row, and what must hold between ranks."""

import re
from collections import Counter, defaultdict
from datetime import datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.recordings import DAY_NS, folder, to_present_ns

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.replay.anonymise import anonymise
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.trace import load_manifest
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic


@pytest.fixture(scope="module")
def demo():
    return list(RecordedJob(DEMO_RECORDING).batches())


def counted(batches):
    rows = Counter()
    for o in batches:
        rows[str(o.batch.topic)] += o.batch.rows
    return rows


def rows_of(folder):
    def count(name):
        path = folder / f"{name}.parquet"
        return pq.read_metadata(path).num_rows if path.is_file() else 0

    return count


def invariants(batches):
    """Sequences without gap; order of time; watermarks that hold; batches that are not too large."""
    now, sequences, watermark = 0, defaultdict(int), {}
    for o in batches:
        envelope = o.batch.envelope
        assert o.time_ns >= now
        now = o.time_ns
        stream = (envelope["process_id"], o.batch.topic, o.key)
        assert envelope["sequence"] == sequences[stream]
        sequences[stream] += 1
        assert envelope["rows"] <= 4096
        assert all(len(values) == envelope["rows"] for values in o.batch.columns.values())
        time = o.batch.columns.get("start_ns", o.batch.columns.get("time_ns"))
        if time is not None and len(time):
            assert time.min() >= watermark.get(stream, 0)
        assert watermark.get(stream, 0) <= envelope["watermark_ns"] <= o.time_ns or o.batch.topic == Topic.PROCESS
        watermark[stream] = envelope["watermark_ns"]


def test_demo_is_small_and_names_no_real_device():
    assert sum(f.stat().st_size for f in DEMO_RECORDING.iterdir()) <= 6_000_000
    uuids = {r["gpu_uuid"] for r in load_manifest(DEMO_RECORDING)["ranks"]} | set(
        pq.read_table(DEMO_RECORDING / "nvml.parquet")["uuid"].to_pylist()
    )
    assert len(uuids) == 4
    assert all(re.fullmatch(r"GPU-0{8}-0000-4000-8000-0{11}\d", u) for u in uuids)
    assert [r["pid"] for r in load_manifest(DEMO_RECORDING)["ranks"]] == [1000, 1001, 1002, 1003]
    assert len(re.findall(r"GPU-[0-9a-f]{8}-", (DEMO_RECORDING / "manifest.json").read_text())) == 4


def test_demo_rows_in_are_rows_out(demo):
    recorded = rows_of(DEMO_RECORDING)
    rows = counted(demo)
    assert rows["gpu.kernel.v1"] == recorded("kernel")
    assert rows["gpu.memcpy.v1"] == recorded("memcpy") + recorded("memset")
    assert rows["gpu.collective.v1"] == recorded("marker_payload")
    assert rows["gpu.device.v1"] == recorded("nvml")
    assert rows["gpu.range.v1"] == (recorded("marker") - 4) / 2  # each rank's communicator creation never ended
    assert rows["gpu.step.v1"] == 4 * 126
    assert rows["gpu.process.v1"] == 4
    assert dict(rows) == {str(k): v for k, v in RecordedJob(DEMO_RECORDING).rows.items() if v}


def test_demo_invariants(demo):
    invariants(demo)


def test_demo_kernels_come_out_as_they_went_in(demo):
    table = pq.read_table(DEMO_RECORDING / "kernel.parquet", filters=[("rank", "==", 3)])
    table = table.sort_by([("start", "ascending"), ("correlation_id", "ascending")])
    batches = [o.batch for o in demo if o.batch.topic == "gpu.kernel.v1" and o.batch.envelope["rank"] == 3]
    codec = Codec()
    batches = [codec.decode(b.topic, codec.encode(b)) for b in batches]
    start = np.concatenate([b.columns["start_ns"] for b in batches])
    order = np.lexsort((np.concatenate([b.columns["correlation"] for b in batches]), start))
    pairs = {
        "start_ns": "start", "duration_ns": "duration", "stream": "stream_id", "correlation": "correlation_id",
        "registers": "registers_per_thread", "shared_executed": "shared_memory_executed", "grid_y": "grid_y",
    }  # fmt: skip
    for name, recorded in pairs.items():
        values = np.concatenate([b.columns[name] for b in batches])[order]
        assert np.array_equal(values, table[recorded].to_numpy()), name
    names = np.concatenate([b.strings("name", "names") for b in batches])[order]
    assert names.tolist() == table["name"].to_pylist()


def test_demo_ranks_agree_on_every_step_and_ordinal(demo):
    seen = defaultdict(list)
    for b in (o.batch for o in demo if o.batch.topic == "gpu.collective.v1"):
        columns = (b.columns["step"], b.columns["ordinal"], b.strings("operation", "operations"), b.columns["bytes"])
        seen[b.envelope["communicator"], b.envelope["rank"]].extend(zip(*columns, strict=True))
    assert len(seen) == 4
    first, *remaining = [sorted(rows) for rows in seen.values()]
    assert all(rows == first for rows in remaining)
    assert len(first) == 2682


def test_demo_steps_are_those_of_the_manifest_and_their_budgets_add_up(demo):
    listed = load_manifest(DEMO_RECORDING)["steps_rank0"]
    steps = [o.batch for o in demo if o.batch.topic == "gpu.step.v1" and o.batch.rows]
    zero = [b for b in steps if b.envelope["rank"] == 0]
    numbers = np.concatenate([b.columns["step"] for b in zero])
    starts = np.concatenate([b.columns["start_ns"] for b in zero])
    assert numbers.tolist() == [s["step"] for s in listed]
    assert np.abs(starts - [s["start_ns"] for s in listed]).max() < 1_000_000
    for b in steps:
        parts = sum(b.columns[c] for c in ("compute_ns", "copy_ns", "comm_exposed_ns", "idle_ns"))
        assert np.array_equal(parts, b.columns["gpu_duration_ns"])
        assert not b.columns["skipped"].any()


def test_complete_step_is_kept(demo):
    """Nothing of a step comes after it was called complete, and in the end all of them are."""
    complete, last = {}, {}
    for o in demo:
        if o.batch.topic in ("gpu.step.v1", "gpu.collective.v1"):
            stream = (o.batch.topic, o.batch.envelope["rank"])
            inside = o.batch.columns["step"][o.batch.columns["step"] >= 0]
            assert (inside > complete.get(stream, -1)).all()
            assert o.batch.envelope["complete_step"] >= complete.get(stream, -1)
            complete[stream] = last[stream] = o.batch.envelope["complete_step"]
    assert set(last.values()) == {125}


def test_demo_host_clocks_do_not_matter_to_budgets(demo):
    """Ranks leave a collective together: the intervals of a step are equal on all ranks to a fraction of a ms."""
    spans = defaultdict(dict)
    for o in demo:
        if o.batch.topic == "gpu.step.v1":
            for step, length in zip(o.batch.columns["step"], o.batch.columns["gpu_duration_ns"], strict=True):
                spans[int(step)][o.batch.envelope["rank"]] = int(length)
    spread = [max(s.values()) - min(s.values()) for step, s in spans.items() if step]
    assert len(spread) == 125
    assert max(spread) < 1_000_000


def test_only_some_topics_give_the_same_batches(demo):
    wanted = {Topic.COLLECTIVE, Topic.STEP, Topic.PROCESS, Topic.DEVICE}
    chosen = list(RecordedJob(DEMO_RECORDING, topics=wanted).batches())
    assert counted(chosen) == Counter({k: v for k, v in counted(demo).items() if k in wanted})
    key = [(o.time_ns, o.key, o.batch.envelope) for o in demo if o.batch.topic in wanted]
    assert [(o.time_ns, o.key, o.batch.envelope) for o in chosen] == key


def test_loops_continue_time_steps_and_sequences():
    wanted = {Topic.COLLECTIVE, Topic.STEP}
    twice = list(RecordedJob(DEMO_RECORDING, loop=2, topics=wanted).batches())
    invariants(twice)
    once = counted(RecordedJob(DEMO_RECORDING, topics=wanted).batches())
    assert counted(twice) == Counter({k: 2 * v for k, v in once.items()})
    steps = [o.batch for o in twice if o.batch.topic == "gpu.step.v1" and o.batch.envelope["rank"] == 1]
    assert np.concatenate([b.columns["step"] for b in steps]).tolist() == list(range(252))
    ordinals = defaultdict(list)
    for o in twice:
        if o.batch.topic == "gpu.collective.v1":
            for step, ordinal in zip(o.batch.columns["step"], o.batch.columns["ordinal"], strict=True):
                ordinals[o.batch.envelope["rank"], int(step)].append(int(ordinal))
    assert all(sorted(values) == list(range(len(values))) for values in ordinals.values())


def test_a_time_shift_moves_everything():
    wanted = {Topic.STEP, Topic.PROCESS}
    plain, moved = (list(RecordedJob(DEMO_RECORDING, topics=wanted).batches(shift_ns=s)) for s in (0, 10**12))
    for a, b in zip(plain, moved, strict=True):
        assert b.time_ns - a.time_ns == b.batch.envelope["watermark_ns"] - a.batch.envelope["watermark_ns"] == 10**12
        for name in ("start_ns", "gpu_start_ns"):
            if name in a.batch.columns:
                assert (b.batch.columns[name] - a.batch.columns[name] == 10**12).all()


def test_the_demo_is_the_recording_with_other_names(tmp_path):
    source = folder("ddp-gpu-bound")
    anonymise(source, tmp_path / "demo")
    for file in DEMO_RECORDING.iterdir():
        if file.suffix == ".parquet" and file.name != "nvml.parquet":
            assert file.read_bytes() == (source / file.name).read_bytes()
    assert load_manifest(tmp_path / "demo", phases=True) == load_manifest(DEMO_RECORDING, phases=True)
    assert load_manifest(DEMO_RECORDING, phases=True)["phases"] == load_manifest(source, phases=True)["phases"]
    anonymised, original = pq.read_table(DEMO_RECORDING / "nvml.parquet"), pq.read_table(source / "nvml.parquet")
    assert anonymised.drop_columns("uuid").equals(original.drop_columns("uuid"))


def test_a_job_without_nccl_copies_or_samples():
    recording = RecordedJob(folder("fusion"))
    batches = list(recording.batches("r"))
    invariants(batches)
    assert counted(batches) == Counter(
        {"gpu.process.v1": 1, "gpu.kernel.v1": 53_550, "gpu.memcpy.v1": 5_400, "gpu.step.v1": 450, "gpu.range.v1": 450}
    )


def test_a_payload_that_was_not_recorded_is_known_from_the_other_steps():
    path = folder("mesh-2x2")
    batches = list(RecordedJob(path).batches())
    invariants(batches)
    steps = [o.batch.columns["skipped"] for o in batches if o.batch.topic == "gpu.step.v1"]
    assert not np.concatenate(steps).any()
    assert counted(batches)["gpu.collective.v1"] == rows_of(path)("marker_payload") + 1 == 9_648


@pytest.mark.traces
@pytest.mark.parametrize("name", ["ddp-launch-bound", "ddp-long"])
def test_the_longer_recordings(name):
    path = folder(name)
    batches = list(RecordedJob(path).batches())
    invariants(batches)
    assert counted(batches)["gpu.kernel.v1"] == rows_of(path)("kernel")
    assert counted(batches)["gpu.collective.v1"] == rows_of(path)("marker_payload")


@pytest.mark.parametrize(
    "now", ["2026-11-28T00:00:01", "2027-12-30T23:59:59", "2028-02-29T12:00:00", "2028-03-01T00:00"]
)
def test_what_tests_store_of_a_recording_is_one_or_two_days_old_and_keeps_its_time_of_day(now):
    now_ns = int(datetime.fromisoformat(f"{now}+00:00").timestamp()) * 10**9
    last_ns = load_manifest(DEMO_RECORDING, phases=True)["phases"][-1]["end_ns"]
    moved = last_ns + to_present_ns(last_ns, now_ns)
    assert DAY_NS <= now_ns - moved < 2 * DAY_NS
    assert (moved - last_ns) % DAY_NS == 0
