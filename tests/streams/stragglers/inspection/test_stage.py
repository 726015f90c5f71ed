"""A suspect rank of a job whose hosts jitter is named once its stacks show why, with the line, and stays named."""

from __future__ import annotations

import json

import pytest
from support.labs.stacks import both
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.producers.stacks.verdicts import SUSPECT, straggler
from drumline.schemas.topics import Topic
from drumline.streams.core.records import NO_ROWS, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import latest, results
from drumline.streams.stragglers.stage import JobStage

FIRST, LATE = 300, 14 * MS
NOISY = batches(simulate(ddp(2, 1), 600, (Fault(1, "idle", LATE, first=FIRST),), noise=0.3))
#: From a suspect's window to the records of its stacks, by the agent's sampling and Kafka; ns.
DELAY_NS = 12_000_000_000
JOB_TOPICS = (Topic.LATENESS, Topic.STEP, Topic.STACK)


class Agent:
    """Yields a job's batches, and the stacks of its first suspect after a delay: in `load` for this share of time."""

    def __init__(self, share):
        self.share, self.requests, self.pending, self.store = share, [], [], {}

    def stream(self):
        for time_ns, batch in NOISY:
            while self.pending and self.pending[0][0] <= time_ns:
                yield self.pending.pop(0)
            yield time_ns, batch

    def take(self, verdict, now_ns):
        request = straggler(verdict, 0.0)
        if request is not None and request.kind == SUSPECT and request.first_step >= FIRST and not self.requests:
            self.requests.append(request)
            records = both(self.share, first_step=request.first_step)
            self.pending += [(now_ns + DELAY_NS, record) for record in records]


def run(share):
    """Return the agent, and (rank, severity, evidence) rows of the last revision of each window by its first step."""
    agent, config, published, clock = Agent(share), StragglerConfig(), [], [0]
    stages = [((Topic.COLLECTIVE,), CommunicatorStage({}, config)), (JOB_TOPICS, JobStage(agent.store, config))]

    def timed():
        for time_ns, batch in agent.stream():
            clock[0] = max(clock[0], time_ns)
            yield time_ns, batch

    for batch in results(timed(), stages, config.idle_ns):
        if batch.topic == Topic.STRAGGLER:
            published.append(batch)
            agent.take(batch, clock[0])
    rows = {}
    for (_, _, first_step), batch in latest(published).items():
        texts = batch.strings("evidence_json", "evidence").tolist()
        causes = batch.strings("cause", "causes").tolist()
        rows[first_step] = {
            rank: (severity, cause, json.loads(text))
            for rank, severity, cause, text in zip(
                batch.columns["rank"].tolist(), batch.columns["severity"].tolist(), causes, texts, strict=True
            )
        }
    return agent, rows


def named(rows, rank):
    return [first for first, of in sorted(rows.items()) if of[rank][0] > 0]


@pytest.fixture(scope="module")
def without():
    return run(0.0)


def test_lateness_alone_names_the_rank_late_or_never(without):
    agent, rows = without
    assert [request.named for request in agent.requests] == [(1,)]
    assert named(rows, 0) == []
    assert not [first for first in named(rows, 1) if first < FIRST + 10 * 20]


def test_what_only_its_python_did_names_it_when_the_stacks_come_and_it_stays_named():
    agent, rows = run(0.2)
    [request] = agent.requests
    ranks = named(rows, 1)
    assert named(rows, 0) == []
    seconds = (min(ranks) - request.last_step) * 0.08
    assert seconds <= DELAY_NS / 1e9
    late = [first for first in sorted(rows) if first >= min(ranks)]
    assert len(ranks) >= 0.8 * len(late)
    _, cause, evidence = rows[ranks[0]][1]
    assert cause == "host_stall"
    assert evidence["inspection"]["at"] == "load (data.py:4)"
    assert evidence["inspection"]["share"] == pytest.approx(0.2, abs=0.05)


def test_what_both_ranks_do_is_stated_and_names_no_rank(without):
    agent, rows = without
    [request] = agent.requests
    after = [of[1][2] for first, of in sorted(rows.items()) if request.first_step <= first < FIRST + 10 * 20]
    assert any("inspection" in evidence for evidence in after)


def test_stacks_are_kept_over_a_restart_and_go_with_the_run():
    agent, _ = run(0.2)
    [name] = [name for name in agent.store if name.startswith("i|")]
    head = unpack_rows(agent.store[name], NO_ROWS).head
    assert [of["rank"] for of in head["inspections"]] == [1]
    restored = JobStage(agent.store, StragglerConfig())
    [state] = restored.states.values()
    assert [of.at for of in state.stacks.inspections] == ["load (data.py:4)"]
    state.forget()
    assert not [name for name in agent.store if name.startswith("i|")]
