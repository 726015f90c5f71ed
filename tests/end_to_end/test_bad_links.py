"""A job on four hosts, one link of which loses packets, goes down again and again, or has a smaller MTU."""

import threading
import time
from contextlib import contextmanager

import pytest
from support.labs.host_job import host_job

from drumline.streams.hangs.config import HangConfig

COUNT, CHUNK, COMPUTE_MS, RATE = 4, 1 << 18, 20, 2e7
BAD = 1
PAIR = [(BAD, BAD + 1)]
#: Windows of which no more than this part may name something else, or nothing: rates vary under such faults.
MOST_WRONG = 0.4
#: A flap: time without the link, and with it; s.
DOWN_S, UP_S = 1.0, 2.0


@contextmanager
def flapping(hosts, a, b):
    """Cut a link again and again."""
    done = threading.Event()

    def flap():
        while not done.wait(UP_S):
            hosts.cut(a, b)
            time.sleep(DOWN_S)
            hosts.restore(a, b)

    thread = threading.Thread(target=flap)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.long  # a worker, a sink, and four agents
@pytest.mark.stack
def test_a_link_that_loses_or_flaps_is_named_and_one_that_passes_small_packets_only_stands(
    clean_stack, environment_of, tmp_path
):
    with host_job(clean_stack, environment_of, tmp_path, COUNT, RATE) as job:
        a, b = job.lab.link(BAD)
        job.lab.start_job(CHUNK, 2, COMPUTE_MS)
        job.phase("healthy", 20)
        job.hosts.lose(a, b, 0.05)
        job.phase("few lost", 20)
        job.hosts.lose(a, b, 0.3)
        job.phase("many lost", 45)
        job.hosts.lose(a, b, 0.0)
        job.phase("healthy again", 12)
        with flapping(job.hosts, a, b):
            job.phase("flapping", 50)
        job.phase("after it", 10)  # TCP tries again later and later
        job.phase("healthy at last", 12)
        job.hosts.apply(b, "mtu", job.hosts.end(b, a), "600")
        since_ns, stated = time.time_ns(), job.first_hang()
        windows = {name: job.windows(name) for name in job.spans}
    assert [of for named in windows.values() for of in named if of.late] == []
    for name in ("healthy", "few lost", "healthy again", "healthy at last"):
        assert [of for of in windows[name] if of.flows] == [], name
    for name in ("many lost", "flapping"):
        wrong = [of[:5] for of in windows[name] if of[:2] != (PAIR, "one_way")]
        assert len(windows[name]) >= 5, name
        assert len(wrong) <= MOST_WRONG * len(windows[name]), (name, len(windows[name]), wrong)
    assert (stated["at"] - since_ns) / 1e9 < HangConfig().standing_ns / 1e9 + 4
