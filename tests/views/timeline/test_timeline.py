"""`drumline timeline` of a recorded job, one rank's clock half a second off: the trace has each stored row once."""

import gzip
import json
import os
import time
from collections import Counter

import pytest
from support import drumline_program, migrated_database
from support.demo_engine import RECORDING
from support.perfetto_reading import Reading
from support.recordings import to_present_ns

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.lab.bench.direct_load import Loader
from drumline.producers.replay.recording import RecordedJob
from drumline.views.report.data import NoSuchRun
from drumline.views.timeline.chrome_writer import ChromeWriter
from drumline.views.timeline.job_trace import timeline
from drumline.views.timeline.rank_tracks import TooMuch

pytestmark = pytest.mark.stack
FIRST, LAST = 20, 29
OFF = {1: 500_000_000}
IN_STEPS = f"step BETWEEN {FIRST} AND {LAST}"
# Written apart from the product's: what began while the rank was in these steps.
WITHIN = f"""
SELECT e.rank AS rank, count() AS n FROM {{table}} AS e INNER JOIN (
    SELECT rank, min(least(start, if(gpu_duration_ns > 0, gpu_start, start))) AS a,
           max(greatest(end_time, addNanoseconds(gpu_start, gpu_duration_ns))) AS b
    FROM steps WHERE job = 'demo' AND {IN_STEPS} GROUP BY rank
) AS s ON s.rank = e.rank WHERE e.job = 'demo' AND e.start BETWEEN s.a AND s.b GROUP BY rank
"""


@pytest.fixture
def stored(clean_stack):
    """A client of an engine that has the first 40 steps of the demo's job."""
    migrated_database.create(clean_stack)
    client = connect(clean_stack, database=clean_stack.clickhouse.database)
    loader, recording = Loader(client, clean_stack), RecordedJob(RECORDING, job="demo")
    present_ns = to_present_ns(recording.last_ns)
    for shift, ranks in ((0, {0, 2, 3}), (OFF[1], {1})):
        steps = Counter()
        for out in recording.batches("r1", present_ns + shift):
            rank = int(out.batch.envelope["rank"])
            steps[rank] += out.batch.rows if out.batch.topic == "gpu.step.v1" else 0
            if rank in ranks:
                loader.take(out.batch, out.key, out.time_ns)
            if min(steps[rank] for rank in range(4)) > 40:
                break
    loader.flush_all()
    begin = "(SELECT min(start) FROM steps WHERE rank = 2 AND step = 22)"
    for sql in (
        "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, severity, state, cause, published) "
        "SELECT *, now64(3) FROM VALUES('j String, r String, k Int32, a Int64, b Int64, s Int8, t String, c String', "
        "('demo', 'r1', 2, 10, 24, 2, 'warning', 'slow_compute'), ('demo', 'r1', -1, 10, 24, 2, 'warning', ''), "
        "('demo', 'r1', 3, 10, 24, 0, 'ok', 'ok'), ('demo', 'r1', 2, 30, 44, 2, 'warning', 'slow_compute'))",
        "INSERT INTO stacks (job, run, rank, thread, thread_id, is_main, time, duration_ns, samples, stack) SELECT "
        f"'demo', 'r1', 2, 'MainThread', 7, 1, {begin}, 10000000, number + 1, concat('main (a.py:1);f', "
        "toString(number), ' (lib/b.py:', toString(10 + number), ')') FROM numbers(3)",
    ):
        command(client, sql)
    yield client
    client.close()


def test_a_trace_has_a_slice_for_each_row_and_ranks_that_leave_collectives_together(
    stored, clean_stack, environment_of, tmp_path, monkeypatch
):
    def query(sql, values):
        return rows(stored, sql, values)

    began, spent = time.monotonic(), time.process_time()
    result = timeline(query, "demo", "", FIRST, LAST, [])
    took, cpu, load = time.monotonic() - began, time.process_time() - spent, os.getloadavg()[0]
    print(f"10 steps of 4 ranks: {took:.1f} s, {cpu:.1f} s of CPU beside ClickHouse's; load {load:.0f}")
    assert (result.ranks, result.unaligned) == ([0, 1, 2, 3], [])
    read = Reading(result.trace)
    assert result.slices == sum(read.slices.values())
    chrome = timeline(query, "demo", "", FIRST, LAST, [], form=ChromeWriter)
    events = json.loads(gzip.decompress(chrome.trace))["traceEvents"]
    assert chrome.slices == result.slices == sum(event["ph"] == "B" for event in events)

    def by_rank(sql):
        return {f"rank {row['rank']}": row["n"] for row in rows(stored, sql)}

    def drawn(*tracks):
        counts = Counter()
        for (process, track), number in read.slices.items():
            counts[process] += number if track in tracks else 0
        return {process: number for process, number in counts.items() if number}

    kernels, copies = (by_rank(WITHIN.format(table=table)) for table in ("kernels", "memcpys"))
    assert all(kernels[f"rank {rank}"] > 1000 for rank in range(4))
    assert drawn("stream") == {rank: kernels[rank] + copies.get(rank, 0) for rank in kernels}
    assert drawn("NVTX") == by_rank(WITHIN.format(table="ranges"))
    assert drawn("NCCL") == by_rank(f"SELECT rank, count() AS n FROM collectives WHERE {IN_STEPS} GROUP BY rank")
    assert drawn("steps") == {f"rank {rank}": 20 for rank in range(4)}
    assert drawn("verdicts") == {"rank 2": 1, "job demo": 1}
    assert {process for process, _ in read.counters} == {f"rank {rank}" for rank in range(4)}

    ranks = sorted(kernels)
    assert {tuple(sorted(rank for rank, _ in joined)) for joined in read.flows.values()} == {tuple(ranks)}
    assert all(len({name for _, name in joined}) == 1 for joined in read.flows.values())
    spreads = [max(ends) - min(ends) for ends in ([read.ends[flow, rank] for rank in ranks] for flow in read.flows)]
    assert sorted(spreads)[len(spreads) * 9 // 10] < 100_000, "ns"
    assert [(frames[-1], weight) for _, _, frames, weight in read.samples] == [
        (("f2", "lib/b.py", 12), 3), (("f1", "lib/b.py", 11), 2), (("f0", "lib/b.py", 10), 1)
    ]  # fmt: skip

    path = tmp_path / "t.pftrace"
    arguments = ("timeline", "--job", "demo", "--steps", "21", "--ranks", "1,3", "-o", str(path), "--json")
    done = drumline_program.run(*arguments, environment=environment_of(clean_stack))
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.iterdir()] == [path]
    read = Reading(path.read_bytes())
    assert {process for process, _ in read.slices} == {"rank 1", "rank 3", "job demo"}
    assert json.loads(done.stdout)["slices"] == sum(read.slices.values())
    with pytest.raises(NoSuchRun, match="has no step 9000 to 9000; there are steps 0 to "):
        timeline(query, "demo", "", 9000, 9000, [])
    with pytest.raises(NoSuchRun, match="no step 21 to 21 of rank 7"):
        timeline(query, "demo", "", 21, 21, [1, 7])
    monkeypatch.setattr("drumline.views.timeline.job_trace.MOST_ROWS", 100)
    with pytest.raises(TooMuch, match="a trace has at most 100: name fewer --steps or --ranks"):
        timeline(query, "demo", "", 21, 21, [])
