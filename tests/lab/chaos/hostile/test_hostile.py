"""Hostile records cover every field of the schemas; a run beside them is clean only if the job notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice
from random import Random

import pytest

from drumline.lab.chaos.hostile.records import ROWS, Writer, attacks, hostile_records
from drumline.lab.chaos.hostile.report import HostileReport
from drumline.lab.chaos.reference import Difference
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord
from drumline.schemas.model import has_schema, model
from drumline.schemas.topics import TOPICS

TOPIC_NAMES = [spec.topic for spec in TOPICS if has_schema(spec.topic)]


def test_the_same_seed_sends_the_same_attacks():
    first, again, other = ([r.attack for r in islice(hostile_records(seed), 50)] for seed in (1, 1, 2))
    assert first == again != other


def test_thousands_of_records_have_every_kind_of_attack():
    assert 2_000 < sum(1 for topic in TOPIC_NAMES for _ in attacks(model(topic), Random(1))) < 15_000


def test_a_record_that_nothing_was_done_to_is_accepted():
    codec = Codec()
    for topic in TOPIC_NAMES:
        record = Writer(topic, codec, "1").plain()
        assert codec.decode(topic, record.value, round(time.time() * 1000)).rows in (1, ROWS)


def test_a_hostile_record_is_read_or_a_bad_record():
    codec, read = Codec(), 0
    for record in islice(hostile_records(5, ["p"]), 150):
        with suppress(BadRecord):
            read += codec.decode(record.topic, record.value).topic == record.topic
    assert 0 < read < 150, "both kinds are needed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"unaccounted": ["gpu.step.v1:0:7"]},
        {"problems": ["not drained"]},
        {"findings": ["windows_differ"]},
        {"exits": {"sink": [3]}},
        {"results": []},
        {"results": [Difference("stragglers", 9, 1, 0)]},
        {"delays": {"alone": [[1.0]], "beside": [[2.1]]}},
        {"delays": {"alone": [[1.0]]}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_one_wrong_thing_makes_a_run_beside_hostile_records_fail(wrong):
    fine = {"results": [Difference("stragglers", 9, 0, 0)], "delays": {"alone": [[1.0]], "beside": [[1.9]]}}
    assert HostileReport(1, **fine).clean
    report = HostileReport(1, **(fine | wrong))
    assert not report.clean
    assert not report.as_json()["clean"]


def test_rounds_count_together_and_each_is_shown():
    delays = {"alone": [[1.0] * 10, [2.0] * 10], "beside": [[1.0] * 10, [3.0] * 10]}
    report = HostileReport(1, delays=delays)
    assert (report.ratio, report.round_ratios) == (1.5, [1.0, 1.5])
    assert "ratio 1.50, bar 2; of the rounds: 1.00, 1.50" in list(report.lines())
    assert report.as_json()["delays"]["beside"]["windows"] == 20


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_innocent_job_does_not_notice_hostile_records(jars):
    command = [sys.executable, "-m", "drumline.cli.app", "chaos", "--hostile", "2000", "--seed", "7", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["sent"] == 2_000, "beside those that Kafka rejected"
    assert report["dispositions"]["dead_letter"] > 500
