"""The state of a worker in this process, without Kafka: stages of four partitions over Faust's own tables.

    state_memory.py names|units COUNT FOLDER

Prints JSON: RSS before and after in MB, what the budget counted, units by stage, rows that were not taken in.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from support.tables import apply_batch

from drumline.infra.config.settings import Settings, StreamSettings
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.streams.stragglers.step_rows import BUDGET
from drumline.streams.worker.app import wirings
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker
from drumline.streams.worker.partition_store import PartitionStore

PARTITIONS, NAMES = 4, 4096
NOW = time.time_ns()


class Written:
    """A change that the broker has."""

    def __await__(self):
        return iter(())


def rss_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def built(folder):
    settings = Settings(stream=StreamSettings(data_dir=folder, state_mb=320))
    worker = StreamWorker(settings, wirings(settings), WorkerTopics(PARTITIONS, {}), Codec())
    for runner in worker.runners.values():
        runner.table.changelog_topic = SimpleNamespace(get_topic_name=lambda: "", send_soon=lambda **_: Written())
        runner._fencing = SimpleNamespace(headers=lambda place: [])
        for number in range(PARTITIONS):
            store = PartitionStore({}, runner._writer(number))
            runner._parts[number] = (runner._build(store), store)
    return worker


def envelope(i, rows, **more):
    place = {"rank": 0, "world_size": 2, "host": f"h{i % 100}", "gpu_uuid": f"GPU-{i}", "rows": rows}
    times = {"base_time_ns": NOW, "watermark_ns": NOW, "sent_ns": NOW, "local_rank": 0, "dropped_before": 0}
    return {"job": f"j{i}", "run": f"r{i}", "process_id": f"p{i:036d}", "sequence": 0, **place, **times, **more}


def kernels(i, names):
    n = len(names)
    columns = {"name": np.arange(n, dtype="u4"), "start_ns": np.full(n, NOW), "duration_ns": np.full(n, 1000, "u8")}
    columns |= {f"{size}_{axis}": np.ones(n, "i4") for size in ("grid", "block") for axis in "xyz"}
    return Batch("gpu.kernel.v1", envelope(i, n, names=names), columns)


def collective(i):
    columns = {name: np.zeros(1, "i8") for name in ("step", "ordinal", "operation", "bytes", "covered_ns")}
    columns |= {"start_ns": np.full(1, NOW), "duration_ns": np.ones(1, "i8")}
    more = {"communicator": f"{i:032x}", "complete_step": 0, "operations": ["AllReduce"]}
    return Batch("gpu.collective.v1", envelope(i, 1, **more), columns)


def step(i):
    columns = {name: np.ones(1, "i8") for name in BUDGET} | {"skipped": np.zeros(1, "u1"), "step": np.zeros(1, "i8")}
    columns |= {"start_ns": np.full(1, NOW), "duration_ns": np.ones(1, "i8")}
    return Batch("gpu.step.v1", envelope(i, 1, complete_step=0), columns)


def main(kind, count, folder):
    worker = built(Path(folder))
    before = rss_mb()

    def feed(stage_name, batch, offset):
        stage, store = worker.runners[stage_name]._parts[offset % PARTITIONS]
        apply_batch(stage, batch, offset, NOW)
        store.take_pending()

    for i in range(count):
        if kind == "names":
            feed("kernel-frequency", kernels(i, [f"void kernel_{i}_{j}<float, 128>(float*)" for j in range(NAMES)]), i)
        else:
            feed("kernel-frequency", kernels(i, [f"k{i}"]), i)
            feed("communicator", collective(i), i)
            feed("job", step(i), i)
    stages = {name: [stage for stage, _ in runner._parts.values()] for name, runner in worker.runners.items()}
    result = {
        "before_mb": round(before),
        "rss_mb": round(rss_mb()),
        "counted_mb": round(stages["job"][0].budget.total / 1e6),
        "units": {name: sum(len(stage.states) for stage in of) for name, of in stages.items()},
        "rows_not_taken_in": sum(stage.denied_rows for of in stages.values() for stage in of),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
