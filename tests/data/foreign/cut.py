"""Cut published traces to what the tests need: cut.py DLRM_FOLDER HTA_FOLDER TABLES_FOLDER."""

import gzip
import json
import shutil
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Categories of events that are kept; of runtime calls those that launch a kernel, or wait for the GPU.
KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "user_annotation"}
LAUNCHES, SYNCHRONISES = {"cuda_runtime", "cuda_driver"}, "Synchronize"
#: Columns of a table that are read, and the steps kept of the two large tables.
COLUMNS = ["step", "rank", "stage", "dp_rank", "optype", "start_ts", "duration"]
STEPS = 16


def cut_trace(source: Path, target: Path) -> None:
    """Write the events that count as small JSON."""
    content = source.read_bytes()
    trace = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    events = trace["traceEvents"]
    launched = {e["args"].get("correlation") for e in events if e.get("cat") == "kernel"}
    trace["traceEvents"] = [
        e
        for e in events
        if e.get("cat") in KEPT
        or e.get("name") == "record_param_comms"
        or (e.get("cat") in LAUNCHES and (e["args"].get("correlation") in launched or e["name"].endswith(SYNCHRONISES)))
    ]
    target.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9, mtime=0))


def cut_table(source: Path, target: Path, steps: int) -> None:
    """Write the first steps and the columns that are read."""
    table = pq.read_table(source, columns=COLUMNS)
    kept = sorted(set(table["step"].to_pylist()))[:steps]
    table = table.filter(pc.field("step") <= kept[-1])
    dictionaries = [name for name in COLUMNS if name not in ("start_ts", "duration")]
    pq.write_table(
        table,
        target,
        compression="zstd",
        compression_level=19,
        use_dictionary=dictionaries,
        use_byte_stream_split=["start_ts", "duration"],
    )


dlrm, hta, tables = map(Path, sys.argv[1:])
folder = Path(__file__).parent
for path in sorted(dlrm.glob("worker*.json")):
    cut_trace(path, folder / "dlrm" / f"{path.name.split('_')[0]}.json.gz")
for path in sorted(hta.glob("sampled_rank-*.json.gz")):
    cut_trace(path, folder / "hta" / path.name)
for name, steps in (("AR", STEPS), ("SE", STEPS), ("ST", 1 << 20)):
    cut_table(tables / f"trace-{name}.parquet", folder / "operations" / f"trace-{name}.parquet", steps)
    shutil.copyfile(tables / f"meta-{name}.yaml", folder / "operations" / f"meta-{name}.yaml")
