"""Turn a folder that causes.py brought back into a recording: keep_recording.py FROM TO [FIRST-LAST...]

TO gets rows.jsonl.xz (producers/replay/published.py), what verdicts are made of, and manifest.json with the phases by
step, what was injected and what may be found. Host, GPUs and process ids are replaced, and times of collectives and
steps rounded to a microsecond. FIRST-LAST: steps that are kept, all by default; phases are cut to them.
"""

import json
import lzma
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from drumline.producers.replay.anonymise import fake_uuid
from drumline.producers.replay.published import write_published
from drumline.producers.spool.segment_format import scan
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.errors import BadRecord
from drumline.schemas.model import AVRO
from drumline.schemas.topics import Topic

LOCK = json.loads((AVRO / "lock.json").read_text())
TOPICS = {Topic.COLLECTIVE, Topic.STEP, Topic.DEVICE, Topic.HOST}
#: Fault of a host -> the detail of its verdict, where their names differ.
DETAILS = {"save": "checkpoint"}
#: Fault -> (cause, detail) by CUPTI, and cause by NCCL's operations. Of those with rank -1, the job's row has it.
OF_GPU = {
    "batch": ("slow_compute", "more_work", "slow_gpu"),
    "shared_gpu": ("slow_compute", "shared_gpu", "slow_compute"),
    "slow_link": ("slow_link", "", "slow_link"),
}
ROUNDED = {"start_ns", "duration_ns", "gpu_start_ns", "gpu_duration_ns"}
#: Steps at the ends of a phase that count for none: a fault begins and ends between two ranks' steps.
EDGE = 2
#: Time before and after the steps that are kept, of which samples are kept; ns.
AROUND_NS = 2_000_000_000


def batches_of(path: Path) -> list[Batch]:
    """Return the batches of a file of frames, which an older version may have made."""
    codec, batches = Codec(), []
    ids = {topic: [version["id"] for version in reversed(LOCK[str(topic)])] for topic in TOPICS}
    for frame in scan(lzma.decompress(path.read_bytes()), True):
        if frame.topic not in TOPICS:
            continue
        for number in ids[Topic(frame.topic)]:
            with suppress(BadRecord):
                batches.append(codec.decode(frame.topic, header(number) + frame.body, bounded=False))
                break
        else:
            raise ValueError(f"{path}: a batch of {frame.topic} that no version reads")
    return batches


def phase_of(phase: dict[str, object], steps: dict[int, list[tuple[int, int, int]]], light: bool) -> dict[str, object]:
    """Return a phase by steps, as `drumline evaluate` reads it."""
    fault, on = str(phase["fault"]).partition(":")[0], int(phase["on"])
    inside = [
        step
        for step, start_ns, end_ns in steps[max(on, 0)]
        if start_ns >= phase["start_ns"] and end_ns <= phase["end_ns"]
    ]
    first, last = (min(inside) + EDGE, max(inside) - EDGE) if inside else (0, -1)
    kept = {
        "phase": phase["fault"],
        "first_step": first,
        "last_step": last,
        "start_ns": phase["start_ns"],
        "end_ns": phase["end_ns"],
    }
    if fault == "healthy" or not phase["done"]:
        return {**kept, "fault_ranks": [], "accepted_causes": [], "counted": bool(phase["done"])}
    if fault == "batch" and on < 0:  # a changed job is no more than suspect
        return {**kept, "fault_ranks": [], "accepted_causes": ["changed_job"], "counted": False}
    cause, detail, light_cause = OF_GPU.get(fault, ("host_stall", DETAILS.get(fault, fault), "host_stall"))
    ranks = [] if cause == "slow_link" else [on]
    kept |= {"fault_ranks": ranks, "injected_cause": cause, "injected_rank": on, "counted": True}
    kept["accepted_causes"] = [light_cause if light else cause]
    if detail and (light_cause == cause or not light):
        kept["accepted_details"] = [detail]
    return kept


def cut(batch: Batch, kept: list[tuple[int, int]], steps: list[tuple[int, int, int]]) -> Batch | None:
    """Return the rows of a batch that are about the kept steps; None without any."""
    if "step" in batch.columns:
        values, spans = batch.columns["step"], kept
        for name in ROUNDED & batch.columns.keys():
            batch.columns[name] = batch.columns[name] // 1_000 * 1_000
    else:
        inside = [[at for step, *times in steps if first <= step <= last for at in times] for first, last in kept]
        values, spans = batch.columns["time_ns"], [(min(at) - AROUND_NS, max(at) + AROUND_NS) for at in inside]
    mask = np.any([(values >= first) & (values <= last) for first, last in spans], axis=0)
    columns = {name: column[mask] for name, column in batch.columns.items()}
    return Batch(batch.topic, {**batch.envelope, "rows": int(mask.sum())}, columns) if mask.any() else None


def cut_phase(phase: dict[str, object], first: int, last: int) -> dict[str, object] | None:
    """Return the part of a phase in the kept steps; None where there is no window of 20."""
    first, last = max(first, int(phase["first_step"])), min(last, int(phase["last_step"]))
    return {**phase, "first_step": first, "last_step": last} if last - first >= 20 else None


def anonymise(batches: list[Batch]) -> dict[int, list[tuple[int, int, int]]]:
    """Replace host, GPUs and process ids; return the steps of each rank: number, start and end."""
    names: dict[str, str] = {}
    steps: dict[int, list[tuple[int, int, int]]] = {}
    for batch in batches:
        envelope, rank = batch.envelope, int(batch.envelope["rank"])
        if rank >= 0:
            names.setdefault(str(envelope["process_id"]), f"{len(names):08d}-0000-4000-8000-000000000000")
            envelope["process_id"] = names[str(envelope["process_id"])]
            envelope["host"], envelope["gpu_uuid"] = "node-a", fake_uuid(rank)
            if "pid" in envelope:
                envelope["pid"] = 1000 + rank
        if batch.topic == Topic.STEP:
            start, end = batch.columns["start_ns"], batch.columns["start_ns"] + batch.columns["duration_ns"]
            steps.setdefault(rank, []).extend(
                zip(batch.columns["step"].tolist(), start.tolist(), end.tolist(), strict=True)
            )
    return steps


def keep(source: Path, target: Path, kept_steps: list[tuple[int, int]]) -> None:
    manifest = json.loads((source / "manifest.json").read_text())
    batches = batches_of(source / "rows.xz")
    light = any(batch.envelope.get("source") == "nccl" for batch in batches if batch.topic == Topic.STEP)
    steps = anonymise(batches)
    phases = [phase_of(phase, steps, light) for phase in manifest["phases"]]
    if kept_steps:
        batches = [part for batch in batches if (part := cut(batch, kept_steps, steps[0]))]
        phases = [part for phase in phases for first, last in kept_steps if (part := cut_phase(phase, first, last))]
    target.mkdir(parents=True)
    write_published(target, batches)
    kept = {key: manifest[key] for key in ("how", "policy")} | {"world_size": manifest["ranks"]}
    rows = {str(topic): int(np.sum([b.rows for b in batches if b.topic == topic])) for topic in sorted(TOPICS)}
    (target / "manifest.json").write_text(json.dumps({**kept, "rows": rows, "phases": phases}, indent=1) + "\n")


if __name__ == "__main__":
    ranges = [tuple(map(int, text.split("-"))) for text in sys.argv[3:]]
    keep(Path(sys.argv[1]), Path(sys.argv[2]), ranges)
