"""A verdict is published however many ranks are late: its evidence stays inside the bounds of a record."""

import json

import numpy as np
import pytest

from drumline.schemas.bounds.check import check
from drumline.schemas.bounds.limits import EVIDENCE
from drumline.streams.stragglers.alarm import Alarm
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.verdict import WindowVerdict
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict, grouped
from drumline.streams.stragglers.window_verdict import LEFT_OUT, verdict_batch


class Ranks:
    """Stands for the ranks of a window without communicators."""

    def __init__(self, count):
        self.ranks, self.communicators = np.arange(count), []


def rows(late, evidence):
    return [RankVerdict(rank, 2, Cause("host_stall"), 1, 0.5, evidence=evidence) for rank in range(late)]


def published(of):
    fields = ("sequence", "base_time_ns", "first_step", "last_step", "window_start_ns", "window_end_ns", "revision")
    envelope = {"job": "j", "run": "r", "sent_ns": 0} | dict.fromkeys(fields, 0)
    verdict = WindowVerdict(tuple(of), len(of), 20, 0, 10**9, {})
    alarms = dict.fromkeys(range(len(of)), Alarm())
    batch = verdict_batch(verdict, alarms, {}, {}, lambda window: (window, window), envelope)
    check(batch)
    return [batch.envelope["evidence"][at] for at in batch.columns["evidence_json"]]


@pytest.mark.parametrize("late", [64, 2_048])
def test_of_many_ranks_late_together_each_row_names_some_and_their_number(late):
    hosts = {rank: "a" if rank < late else "b" for rank in range(2 * late)}
    of = grouped(rows(late, {"steps": 20}), Ranks(2 * late), hosts)
    evidence = json.loads(published(of)[late - 1])
    assert evidence["late_together"] == [*range(64)]
    assert evidence.get("late_together_count", 64) == late


@pytest.mark.parametrize(("late", "length"), [(2, EVIDENCE.length + 1), (600, 30_000)])
def test_evidence_that_a_record_cannot_hold_is_left_out_and_the_verdict_is_published(late, length):
    """Its run went into quarantine, so it had no verdicts for 10 minutes."""
    assert published(rows(late, {"text": "x" * length})) == [LEFT_OUT] * late
    assert len(published(rows(late, {"text": "x"}))[0]) < 20
