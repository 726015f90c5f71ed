"""Copy of a recorded trace without GPU UUIDs and process ids, as for the demo recording.

It runs as `python -m drumline.producers.replay.anonymise FROM TO`. All other content stays byte for byte.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.trace import load_manifest

TABLES = ("kernel", "memcpy", "memset", "marker", "marker_payload")


def fake_uuid(rank: int) -> str:
    """Return the GPU UUID that stands for a rank's GPU."""
    return f"GPU-00000000-0000-4000-8000-{rank:012d}"


def anonymise(source: Path, target: Path) -> None:
    """Copy `source` to the new folder `target`.

    Rank r gets GPU fake_uuid(r) and pid 1000 + r, in manifest and device samples. Raises BadTrace, or
    FileExistsError if `target` exists.
    """
    manifest = load_manifest(source, phases=True)
    uuids: dict[str, str] = {}
    for process in manifest["ranks"]:
        rank = int(process["rank"])
        uuids[process["gpu_uuid"]] = fake_uuid(rank)
        process.update(gpu_uuid=fake_uuid(rank), pid=1000 + rank)
    target.mkdir(parents=True)
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for name in TABLES:
        if (source / f"{name}.parquet").is_file():
            shutil.copyfile(source / f"{name}.parquet", target / f"{name}.parquet")
    if (source / "nvml.parquet").is_file():
        table = pq.read_table(source / "nvml.parquet")
        recorded_uuids = [str(uuid) for uuid in table["uuid"].to_pylist()]
        if unknown := sorted({uuid for uuid in recorded_uuids if uuid not in uuids}):
            raise BadTrace(f"{source / 'nvml.parquet'}: samples of {len(unknown)} GPUs that the manifest does not name")
        replaced = pa.array([uuids[uuid] for uuid in recorded_uuids], pa.string())
        at = table.schema.get_field_index("uuid")
        pq.write_table(table.set_column(at, "uuid", replaced), target / "nvml.parquet", compression="zstd")


if __name__ == "__main__":
    anonymise(Path(sys.argv[1]), Path(sys.argv[2]))
