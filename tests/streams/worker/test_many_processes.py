"""20,000 processes that each send one record and fall silent: their windows leave together, on a real broker."""

import time

import pytest
from support.labs.stream_worker import PYTHON, Child, Reader, apply_topics, publish
from support.labs.windows import T0, kernels

from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(400)]
PROCESSES = 20_000
COMMAND = [PYTHON, "-m", "drumline.infra.cli.app", "stream"]


def test_the_windows_of_processes_that_fell_silent_together_leave_together(clean_stack, environment_of, tmp_path):
    """Each window is a result and two writes of state; awaited one after the other, 62 a second left."""
    apply_topics(clean_stack)
    results = Reader(clean_stack, Topic.KERNEL_FREQUENCY)
    worker = Child(environment_of(clean_stack), tmp_path, COMMAND, "one")
    try:
        at_s = (time.time_ns() - T0) / 1e9
        sent_ns = time.time_ns()
        batches = [kernels([(at_s, 1000, "k")], process=f"p{n}", run=f"c{n}", sent=sent_ns) for n in range(PROCESSES)]
        publish(clean_stack, batches, lambda batch: batch.envelope["process_id"].encode())
        results.until(lambda sent: len(sent) > 0, 120)
        started = time.monotonic()
        results.until(lambda sent: len(sent) >= 2 * PROCESSES, 300)  # a row is in two windows
        rate = 2 * PROCESSES / (time.monotonic() - started)
        print(f"{rate:.0f} results a second")
    finally:
        worker.kill()
    assert rate > 300
