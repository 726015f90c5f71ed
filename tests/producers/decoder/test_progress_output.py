"""Progress of real processes that a fake CUPTI records, by real decoders, up to the rank that is named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tables import apply_batch
from support.wait_limit import WAIT_S

from drumline.producers.decoder.progress_output import INTERVAL_NS
from drumline.producers.spool.segment_format import SEGMENT_MAGIC, Frame, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage

TESTS = Path(__file__).parents[2]
LAB, SECOND, RANKS = TESTS / "support" / "labs" / "hanging_cupti.py", 10**9, 2
WAYS = ("sleep", "healthy")


class Spools:
    """The progress that decoders have spooled, and a hang stage that gets it, in real time."""

    def __init__(self, root):
        self.root, self.stage = root, HangStage({}, HangConfig(ending_ns=SECOND))
        self.seen, self.results, self.newest = set(), {}, {}

    def round(self):
        for segment in self.root.glob("*/spool/[!.]*/*.seg"):
            for frame in scan(segment.read_bytes()[len(SEGMENT_MAGIC) :], complete=True):
                if isinstance(frame, Frame) and frame.topic == Topic.PROGRESS:
                    self._read(decode(model(frame.topic), frame.body))
        self.take(self.stage.on_tick(time.time_ns(), True))

    def _read(self, batch):
        place = batch.envelope["process_id"], batch.envelope["sequence"]
        if place not in self.seen:
            self.seen.add(place)
            if batch.rows:
                self.newest[batch.envelope["run"], batch.envelope["rank"]] = batch
            self.take(apply_batch(self.stage, batch, 0, time.time_ns()))

    def are_silent(self, run):
        """Return whether the ranks of a job have published nothing for three times as long as they may."""
        sent = [batch.envelope["sent_ns"] for (of, _), batch in self.newest.items() if of == run]
        return time.time_ns() - max(sent) > 3 * INTERVAL_NS

    def take(self, batches):
        for batch in batches:
            self.stage.mark_sent(batch)
            reasons = batch.strings("reason", "reasons").tolist()
            named = dict(zip(batch.columns["rank"].tolist(), reasons, strict=True))
            self.results.setdefault(batch.envelope["run"], []).append((batch.envelope["state"], named))


@pytest.fixture
def jobs(tmp_path):
    """Ranks of all ways, with a spool for each way."""
    processes = {}
    for how in WAYS:
        (tmp_path / how / "calls").mkdir(parents=True)
        for rank in range(RANKS):
            environment = {
                "PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "DRUMLINE_JOB": "fake", "DRUMLINE_RUN": how,
                "DRUMLINE_SPOOL__ROOT": str(tmp_path / how / "spool"), "RAW_CUPTI_PLAIN": str(tmp_path),
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
            }  # fmt: skip
            command = [sys.executable, str(LAB), how, str(tmp_path / how / "calls")]
            processes[how, rank] = subprocess.Popen(command, env=environment)
    yield processes
    for process in processes.values():
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(2 * WAIT_S)
def test_a_rank_that_sleeps_is_named_and_no_rank_of_a_job_that_goes_on_or_is_not_recorded_any_more(tmp_path, jobs):
    spools, until = Spools(tmp_path), time.monotonic() + WAIT_S
    while not spools.results and time.monotonic() < until:
        spools.round()
        assert all(process.poll() is None for process in jobs.values())
        time.sleep(0.5)
    assert spools.results == {"sleep": [("standing", {-1: "not_called", 1: "not_called"})]}
    states = [batch.strings("state", "states")[0] for batch in spools.newest.values()]
    assert (len(states), set(states)) == (len(jobs), {"running"})
    (tmp_path / "healthy" / "spool" / "policy").write_text("off")  # a window closes: nothing more is known
    jobs["sleep", 1].kill()
    ended = {-1: "gone", 1: "gone"}
    while not (spools.results["sleep"][-1][1] == ended and spools.are_silent("healthy")) and time.monotonic() < until:
        spools.round()
        time.sleep(0.5)
    assert spools.results["sleep"][-1][1] == ended
    assert spools.are_silent("healthy")
    for minutes in range(10):
        spools.take(spools.stage.on_tick(time.time_ns() + minutes * 60 * SECOND, True))
    assert "healthy" not in spools.results
