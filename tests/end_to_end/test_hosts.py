"""A job on several hosts, each a network namespace with an agent: links that get slow, a late host, and a cut."""

import time

import pytest
from support.labs.host_job import host_job
from support.labs.host_lab import RATE

from drumline.streams.hangs.config import HangConfig

SLOW, LATE = 1, 0
#: Hosts, and bytes of a transfer.
COUNT, CHUNK = 3, 1 << 19


@pytest.mark.long  # a worker, a sink, and an agent a host
@pytest.mark.stack
def test_links_of_hosts_are_named_by_both_ends_beside_a_late_host_too(clean_stack, environment_of, tmp_path):
    with host_job(clean_stack, environment_of, tmp_path, COUNT) as job:
        lab = job.lab
        lab.start_job(CHUNK, 3, 20)
        job.phase("healthy", 20)
        lab.limit(SLOW, RATE / 2)
        job.phase("slow", 36)
        lab.limit(SLOW, RATE)
        job.phase("healthy again", 12)
        lab.limit(SLOW, RATE / 2)
        lab.late(LATE, 120)
        job.phase("slow and late", 45)
        lab.late(LATE, 0)
        lab.limit(SLOW, RATE)
        job.phase("healthy at last", 12)
        job.hosts.cut(*lab.link(SLOW))
        cut_ns, stated = time.time_ns(), job.first_hang()
        verdicts = {name: job.windows(name) for name in job.spans}
    for name in ("healthy", "healthy again", "healthy at last"):
        assert [of for of in verdicts[name] if of.flows or of.late] == [], name
    for name, late in (("slow", []), ("slow and late", [LATE])):
        wrong = [of for of in verdicts[name] if of[:3] != ([(SLOW, (SLOW + 1) % COUNT)], "one_way", late)]
        assert len(verdicts[name]) >= 5, name
        assert len(wrong) <= 0.1 * len(verdicts[name]), (name, len(verdicts[name]), wrong)
    limit_s = HangConfig().standing_ns / 1e9 + 4
    assert "All ranks began AllReduce" in stated["note"]
    assert (stated["at"] - cut_ns) / 1e9 < limit_s, stated
