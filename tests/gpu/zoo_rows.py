"""Pack both tiers of a job of the zoo: zoo_rows.py SPOOL RINGS FOLDER JOB [raw]

FOLDER gets cupti.xz: the frames of the job's spools and of the agent's samples of it, without kernels, copies and
ranges. light.xz: the same from NCCL's plugin, which the product's own code (producers/rings) derives from each ring as
the agent would have, round by round, with the agent's samples again. rows.json: how many rows are in both. `raw`:
RANK.ring.xz as well. Nothing has emptied the rings, and their processes have ended.
"""

import json
import lzma
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.rings.checkpoint import Checkpoint
from drumline.producers.rings.host_rings import ROUND_S
from drumline.producers.rings.publication import RingProcess
from drumline.producers.rings.ring_file import MOST_READ, HeaderField, RingFile, RingHeader
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, Frame, head, scan
from drumline.schemas.batch import decode, encode
from drumline.schemas.model import model

LEFT_OUT = {"gpu.kernel.v1", "gpu.memcpy.v1", "gpu.range.v1", "gpu.launch.v1"}
#: Rows of the ring's process that the light tier is made of; samples of devices and hosts come from the agent.
OF_AGENT = {"gpu.device.v1", "gpu.host.v1"}
#: Time after the last record at which the process had ended; ns.
END_NS = 3_000_000_000
#: Time without a new byte after which the decoders have written all, and the longest wait for it; s.
QUIET_S, MOST_WAIT_S = 3.0, 25.0
LOW = np.uint64(0xFFFFFFFF)


class EarlierRing(RingFile):
    """A ring of a process that has ended, as its agent saw it at `at_ns`."""

    def __init__(self, name: str, directory: int) -> None:
        self.at_ns = 1 << 62
        super().__init__(name, directory)
        written = super().header()[HeaderField.WRITTEN]
        parts = [super(EarlierRing, self).records(first, written) for first in range(0, written, MOST_READ)]
        self.whole = np.concatenate([part[:MOST_READ] for part in parts]) if parts else super().records(0, 0)
        self.called = np.maximum.accumulate(self.whole["host_ns"].astype(np.int64))
        self.position = 0
        self.first_ns, self.last_ns = (int(self.called[i]) if written else 0 for i in (0, -1))

    def header(self) -> RingHeader:
        header = super().header()
        numbers = list(header.numbers)
        if hasattr(self, "called"):
            numbers[HeaderField.WRITTEN] = int(np.searchsorted(self.called, self.at_ns, side="right"))
            numbers[HeaderField.READ] = self.position
        return RingHeader(tuple(numbers), header.environment)

    def records(self, first: int, end: int) -> np.ndarray:
        records = self.whole[first : min(end, first + MOST_READ)].copy()
        later = records["seen_ns"].astype(np.int64) > self.at_ns
        records["progress"][later] &= ~LOW
        for name in ("gpu_start_ns", "gpu_stop_ns", "seen_ns"):
            records[name][later & (records["kind"] == 1)] = 0
        return records

    def set_read(self, position: int) -> None:
        self.position = position

    def process_ended(self) -> bool:
        return self.at_ns > self.last_ns + END_NS

    def process(self) -> int:
        return self.pid


class FrameFile:
    """Takes the batches of a process in place of its spool."""

    position = ("", 0)

    def __init__(self, file: lzma.LZMAFile, rows: Counter[str]) -> None:
        self.file, self.rows, self.process = file, rows, {}

    def append(self, topic: str, key: str, body: bytes, rows: int) -> bool:
        self.rows[topic] += rows
        self.file.write(head(DATA, topic, key, rows, 1, body) + body)
        return True

    def identify(self, process: Mapping[str, Any]) -> None:
        self.process = dict(process)

    def close(self) -> None: ...


def frames_of(spool: Path, job: str) -> Iterator[tuple[bool, Frame]]:
    """Yield the frames of the job's processes, and those of the agent (True) that are about it."""
    for identity in sorted(spool.glob("*/identity.json")):
        process = json.loads(identity.read_text())["process"]
        is_agent = not process["job"]
        if not is_agent and process["job"] != job:
            continue
        for path in sorted([*identity.parent.glob("*.seg"), *identity.parent.glob("*.taken")]):
            for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                if not isinstance(frame, Frame) or frame.kind != DATA or frame.topic in LEFT_OUT:
                    continue
                if not is_agent or job.encode() in frame.body:
                    yield is_agent, frame


def derive(
    name: str, directory: int, out: FrameFile, root: Path, gpus: Mapping[int, Mapping[str, str]]
) -> dict[str, Any]:
    """Write the rows of a ring as an agent that reads it every two seconds; return its counts."""
    ring = EarlierRing(name, directory)
    process = RingProcess(ring, Checkpoint(root, ring), lambda record, resumed: out, gpus)  # type: ignore[arg-type, return-value]
    ring.at_ns = ring.first_ns
    header = ring.header()
    while not process.finished:
        ring.at_ns += int(ROUND_S * 1e9)
        process.round(ring.at_ns)
    written = len(ring.whole)
    fields = ("CAPACITY", "DROPPED", "UNKNOWN", "COMMS", "INTERFACE", "CAPTURED", "UNTIMED_STEPS")
    counts = {field.lower(): header[HeaderField[field]] for field in fields}
    counts |= {"records": written, "rank": int(header.environment.get("RANK", "-1"))}
    process.close()
    return counts


def wait_for_decoders(spool: Path) -> None:
    """Wait until the spool has all rows of the processes that ended."""
    until = time.monotonic() + MOST_WAIT_S
    size, quiet_since = -1, time.monotonic()
    while time.monotonic() < until and time.monotonic() < quiet_since + QUIET_S:
        now = sum(path.stat().st_size for path in spool.glob("*/*.seg*"))
        if now != size:
            size, quiet_since = now, time.monotonic()
        time.sleep(0.3)


def as_light(frame: Frame, process_ids: Mapping[int, str]) -> bytes:
    """Return the body of a sample as if its process were known by its ring only."""
    batch = decode(model(frame.topic), frame.body)
    if (rank := int(batch.envelope["rank"])) in process_ids and batch.envelope["process_id"]:
        batch.envelope["process_id"] = process_ids[rank]
    return encode(model(frame.topic), batch)


def pack(spool: Path, rings: Path, folder: Path, job: str, raw: bool) -> None:
    folder.mkdir(exist_ok=True)
    cupti: Counter[str] = Counter()
    light: Counter[str] = Counter()
    processes = [json.loads(path.read_text())["process"] for path in sorted(spool.glob("*/identity.json"))]
    processes = [process for process in processes if process["job"] == job]
    gpus = {p["pid"]: {"uuid": p["gpu_uuid"], "model": p.get("gpu_model", "")} for p in processes if p.get("gpu_uuid")}
    samples = []
    with lzma.open(folder / "cupti.xz", "wb", preset=4) as file:
        out = FrameFile(file, cupti)
        for is_agent, frame in frames_of(spool, job):
            out.append(frame.topic, frame.key, frame.body, frame.rows)
            if is_agent and frame.topic in OF_AGENT:
                samples.append(frame)
    counts: list[dict[str, Any]] = []
    derived = rings / "derived"
    derived.mkdir(exist_ok=True)
    directory = os.open(rings, os.O_RDONLY)
    with lzma.open(folder / "light.xz", "wb", preset=4) as file:
        for path in sorted(rings.glob("*.ring")):
            out = FrameFile(file, light)
            try:
                counts.append(derive(path.name, directory, out, derived, gpus))
            except Exception as error:
                counts.append({"error": f"{type(error).__name__}: {error}"[:300]})
            counts[-1] |= {"ring": path.name, "process": out.process}
            if raw:
                with lzma.open(folder / f"{counts[-1].get('rank', path.stem)}.ring.xz", "wb", preset=1) as kept:
                    kept.write(path.read_bytes())
        process_ids = {ring["rank"]: ring["process"]["process_id"] for ring in counts if ring.get("process")}
        for frame in samples:
            FrameFile(file, light).append(frame.topic, frame.key, as_light(frame, process_ids), frame.rows)
    result = {"rows": {"cupti": cupti, "light": light}, "rings": counts, "processes": processes}
    (folder / "rows.json").write_text(json.dumps(result))


if __name__ == "__main__":
    wait_for_decoders(Path(sys.argv[1]))
    pack(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], "raw" in sys.argv[5:])
