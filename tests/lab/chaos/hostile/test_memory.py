"""The memory of the real worker and sink under as many names, jobs and communicators as anyone sends."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer

from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.chaos.hostile.records import Writer
from drumline.lab.chaos.hostile.values import body
from drumline.lab.chaos.progress import PipelineProgress
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic

TARGET_MB = 600
#: State of a worker with 1.28 GB of memory.
STATE_MB = 320
NAMES_IN_RECORD = 4096
PLACEHOLDER = "01234567"


def records_of_names(count: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield records of kernels that have `count` different names, all of one process."""
    writer = Writer(Topic.KERNEL, Codec(), "names")
    for number in range(count // NAMES_IN_RECORD + 1):
        draft = writer.draft(NAMES_IN_RECORD)
        draft["names"] = [f"void kernel_{number}_{i}<float, 128>(float*)" for i in range(NAMES_IN_RECORD)]
        draft["name"] = np.arange(NAMES_IN_RECORD, dtype="u4")
        yield writer.topic, draft["process_id"].encode(), writer.header + body(writer.model, draft)


def records_of_units(count: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield `count` records: for each job one of its process, one of its communicator, one of its step."""
    templates = []
    for topic in (Topic.KERNEL, Topic.COLLECTIVE, Topic.STEP):
        writer = Writer(topic, Codec(), "units")
        draft = writer.draft(1) | {"job": f"job-{PLACEHOLDER}", "run": f"run-{PLACEHOLDER}"}
        draft["process_id"] = f"00000000-0000-0000-0000-0000{PLACEHOLDER}"
        draft |= {"communicator": f"c-{PLACEHOLDER}"} if "communicator" in draft else {}
        draft |= {"names": [f"kernel-{PLACEHOLDER}"], "name": np.zeros(1, "u4")} if "names" in draft else {}
        batch = Codec().decode(topic, writer.header + body(writer.model, draft))
        templates.append((str(topic), record_key(batch).encode(), writer.header + body(writer.model, draft)))
    for number in range(count):
        topic, key, value = templates[number % 3]
        old, new = PLACEHOLDER.encode(), b"%08d" % (number // 3)
        yield topic, key.replace(old, new), value.replace(old, new)


def peak_mb(pid: int) -> int:
    """Return the most memory that a process had so far."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) // 1000


def publish(settings: Settings, records: Iterator[tuple[str, bytes, bytes]]) -> int:
    producer, count = Producer(producer_config(settings, "drumline-test")), 0
    for topic, key, value in records:
        count += 1
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return count


@pytest.mark.long
@pytest.mark.timeout(6_000)
@pytest.mark.parametrize(("kind", "count"), [(records_of_names, 1_000_000), (records_of_units, 1_000_000)])
def test_a_million_names_or_units_leave_worker_and_sink_below_600_mb(kind, count, jars, tmp_path):
    """As many distinct kernel names; and as many processes, jobs and communicators together."""
    settings = ephemeral_settings(
        tmp_path / "state",
        jars.parent,
        stream=StreamSettings(state_mb=STATE_MB),
        sink=SinkSettings(),
        instance="memory",
        log_level="WARNING",
    )
    variables = environment(settings)
    programs = [
        ManagedProcess(name, [name], tmp_path / f"{name}.log", variables, restarts=0) for name in ("stream", "sink")
    ]
    with running_stack(settings):
        progress, peaks = PipelineProgress(settings), {}
        try:
            for program in programs:
                program.start()
            deadline = time.monotonic() + 60
            while not read_statuses(settings, 0) and time.monotonic() < deadline:
                time.sleep(0.2)
            before = {program.name: peak_mb(program.pid) for program in programs}
            began, published = time.monotonic(), publish(settings, kind(count))
            while (seen := progress.poll()) is None or any(seen.lag.values()):
                for program in programs:
                    program.check()
                time.sleep(1.0)
            peaks = {program.name: peak_mb(program.pid) for program in programs}
            peaks |= {name: peak_mb(of[0].pid) for name, of in own_processes(settings).items() if of}
        finally:
            progress.close()
            for program in programs:
                program.stop()
    print({"kind": kind.__name__, "records": published, "seconds": round(time.monotonic() - began)}, before, peaks)
    assert peaks["stream"] < TARGET_MB
    assert peaks["sink"] < TARGET_MB
