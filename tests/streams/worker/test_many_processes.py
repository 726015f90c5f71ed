"""20,000 processes that each send one record and fall silent: their windows leave together, on a real broker."""

import time

import psutil
import pytest
from support.labs.stream_worker import PYTHON, Child, Reader, apply_topics, publish
from support.labs.windows import T0, kernels

from drumline.infra.kafka.worker_status import read_statuses
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(1_800)]
PROCESSES = 20_000
COMMAND = [PYTHON, "-m", "drumline.cli.app", "stream"]


def test_the_windows_of_processes_that_fell_silent_together_leave_together(clean_stack, environment_of, tmp_path):
    """Each window is a result and two writes of state; awaited one after the other, 62 a second left.

    The machine's other work slows reading and results alike, so results are compared with the records that were read.
    """
    apply_topics(clean_stack)
    settings = clean_stack.model_copy(update={"stream": clean_stack.stream.model_copy(update={"data_dir": tmp_path})})
    results = Reader(clean_stack, Topic.KERNEL_FREQUENCY)
    worker = Child(environment_of(clean_stack), tmp_path, COMMAND, "one")
    cpu = psutil.Process(worker.process.pid).cpu_times

    def handled():
        return sum(status["handled"] for status in read_statuses(settings, 0).values())

    try:
        at_s = (time.time_ns() - T0) / 1e9
        sent_ns = time.time_ns()
        batches = [kernels([(at_s, 1000, "k")], process=f"p{n}", run=f"c{n}", sent=sent_ns) for n in range(PROCESSES)]
        started = time.monotonic()
        publish(clean_stack, batches, lambda batch: batch.envelope["process_id"].encode())
        results.until(lambda sent: handled() >= PROCESSES, 60, handled)
        read, read_cpu = PROCESSES / (time.monotonic() - started), sum(cpu()[:2])
        results.until(lambda sent: len(sent) > 0, 60, handled)
        started = time.monotonic()
        results.until(lambda sent: len(sent) >= 2 * PROCESSES, 60, handled)  # a row is in two windows
        rate = 2 * PROCESSES / (time.monotonic() - started)
        seconds = sum(cpu()[:2])
        print(f"{read:.0f} records and {rate:.0f} results a second, CPU {read_cpu:.1f} and {seconds - read_cpu:.1f} s")
    finally:
        worker.kill()
    assert rate > min(300, read)
