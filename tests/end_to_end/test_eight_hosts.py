"""A job on eight hosts: a link that is slow one way, a late host beside it, and a cut."""

import time

import pytest
from support.labs.host_job import host_job

from drumline.streams.hangs.config import HangConfig

#: Links so slow that eight ranks on two cores wait for them, not for processors.
COUNT, CHUNK, COMPUTE_MS, RATE, WINDOW_STEPS = 8, 1 << 18, 20, 1e7, 5
SLOW, LATE, LATE_MS = 5, 2, 200
#: Windows of which no more than this part may name something else.
MOST_WRONG = 0.1


@pytest.mark.long  # a worker, a sink, and eight agents
@pytest.mark.stack
def test_a_slow_link_of_eight_hosts_is_named_beside_a_late_host_too(clean_stack, environment_of, tmp_path):
    with host_job(clean_stack, environment_of, tmp_path, COUNT, RATE, WINDOW_STEPS) as job:
        lab = job.lab
        lab.start_job(CHUNK, 1, COMPUTE_MS)
        job.phase("healthy", 20)
        lab.limit(SLOW, RATE / 2)
        job.phase("half", 48)
        lab.limit(SLOW, RATE)
        job.phase("healthy again", 12)
        lab.limit(SLOW, RATE / 4)
        job.phase("quarter", 88)
        lab.limit(SLOW, RATE)
        job.phase("healthy after that", 12)
        lab.limit(SLOW, RATE / 2)
        lab.late(LATE, LATE_MS)
        job.phase("half and late", 62)
        lab.late(LATE, 0)
        lab.limit(SLOW, RATE)
        job.phase("healthy at last", 12)
        job.hosts.cut(*lab.link(SLOW))
        cut_ns, stated = time.time_ns(), job.first_hang()
        windows = {name: job.windows(name) for name in job.spans}
    for name in (name for name in windows if name.startswith("healthy")):
        assert [of for of in windows[name] if of.flows or of.late] == [], name
    for name, late in (("half", []), ("quarter", []), ("half and late", [LATE])):
        wrong = [of for of in windows[name] if of[:3] != ([(SLOW, SLOW + 1)], "one_way", late)]
        assert len(windows[name]) >= 9, name
        assert len(wrong) <= MOST_WRONG * len(windows[name]), (name, len(windows[name]), wrong)
    assert (stated["at"] - cut_ns) / 1e9 < HangConfig().standing_ns / 1e9 + 4, stated
    assert "AllReduce" in stated["note"]
