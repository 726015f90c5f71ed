"""A process, communicator or run whose state fails goes into quarantine; the others continue in the same tick."""

import copy
from contextlib import suppress

import numpy as np
import pytest
from support.labs.stage_feed import seen
from support.labs.windows import CONFIG as WINDOWS
from support.labs.windows import T0, Lab, S, kernels
from support.straggler_simulator import MS, Fault, batches, ddp, simulate
from support.tables import apply_batch

from drumline.infra.runtime.stage import FAILED, Incident
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.streams.core.records import UnreadableValue
from drumline.streams.core.state_budget import OverBudget, StateBudget, StateLimits
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import stage as lateness_stage
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers import stage as job_stage
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.stage import ProcessWindows
from drumline.streams.worker.quarantine import report

CONFIG = StragglerConfig(window_steps=12)
STREAM = batches(simulate(ddp(2), 30, (Fault(1, "idle", 25 * MS, first=12, last=23),)))
POISON = "poison"


def renamed(run):
    """The stream as another run publishes it."""
    out = [(time_ns, copy.deepcopy(batch)) for time_ns, batch in STREAM]
    for _, batch in out:
        batch.envelope.update(run=run, job=run)
    return out


def mixed(*streams):
    return sorted((item for stream in streams for item in stream), key=lambda item: item[0])


def of_run(published, run):
    return [
        (batch.topic, batch.envelope, {name: column.tolist() for name, column in batch.columns.items()})
        for batch in published
        if batch.envelope["run"] == run
    ]


def published(stream, stores=None, skip=False):
    """All lateness and verdicts, with sequences, revisions and times. `skip`: rejected batches become dead letters."""
    stores = stores or ({}, {})
    stages = [
        (("gpu.collective.v1",), CommunicatorStage(stores[0], CONFIG)),
        (("gpu.lateness.v1", "gpu.step.v1"), JobStage(stores[1], CONFIG)),
    ]
    if skip:
        for _, stage in stages:
            stage.apply = skipping(stage)
    return list(results(stream, stages, CONFIG.idle_ns)), [stage for _, stage in stages]


def skipping(stage):
    apply = stage.apply

    def skip(table, offsets, now_ns):
        out, stage.failed = apply(table, offsets, now_ns), {}
        return out

    return skip


def failing(function, *names):
    """The function, which raises for the states of POISON."""

    def fails(state, *rest):
        target = state if hasattr(state, "run") else rest[0]
        if target.run == POISON:
            raise ValueError("poison")
        return function(state, *rest)

    return fails


@pytest.mark.parametrize(
    ("module", "name"), [(lateness_stage.CommunicatorStage, "_emit"), (job_stage.JobStage, "_evaluate")]
)
def test_a_run_whose_state_fails_changes_nothing_for_the_others(monkeypatch, module, name):
    expected, _ = published(renamed("good"))
    assert len(of_run(expected, "good")) > 10
    monkeypatch.setattr(module, name, failing(getattr(module, name)))
    result, stages = published(mixed(renamed("good"), renamed(POISON)), skip=True)
    assert of_run(result, "good") == of_run(expected, "good")
    failed = next(stage for stage in stages if stage.quarantine)
    assert {(i.job, i.run, i.reason) for i in failed.incidents} == {(POISON, POISON, FAILED)}
    assert failed.quarantined_rows > 0
    assert not [name for name in failed.store if name.endswith(POISON)], "its state is deleted"


def collective(run, rank, steps, ordinals, base=10**18):
    n = len(steps)
    envelope = {"job": run, "run": run, "rank": rank, "world_size": 2, "host": "h", "gpu_uuid": f"GPU-{rank}"}
    envelope |= {"communicator": "c", "complete_step": max(steps), "operations": ["AllReduce"], "rows": n}
    envelope |= {"process_id": f"{run}{rank}", "sequence": 0}
    columns = {"step": np.array(steps), "ordinal": np.array(ordinals), "operation": np.zeros(n, "u1")}
    columns |= {"bytes": np.full(n, 1024), "start_ns": base + np.arange(n) * 1000, "duration_ns": np.full(n, 1000)}
    return Batch("gpu.collective.v1", envelope, columns | {"covered_ns": np.zeros(n, np.int64)})


def taken(stage, returned):
    for batch in returned:
        stage.mark_sent(batch)
    return {step for b in returned if b.envelope["run"] == "good" for step in b.columns["step"].tolist()}


def ticked(stage, ticks=3):
    return set().union(*(taken(stage, stage.on_tick(10**18 + n * (CONFIG.idle_ns + S), True)) for n in range(ticks)))


def test_negative_ordinals_of_one_job_hide_no_step_of_another():
    """As the codec let them pass. Of the other job rank 1 ends after step 29, so a tick closes the rest."""
    store = {}
    stage, steps = CommunicatorStage(store, CONFIG), set()
    for offset, rank in enumerate((0, 1)):
        with suppress(ValueError):
            apply_batch(stage, collective(POISON, rank, [5], [-10]), offset, 10**18)
        batch = collective("good", rank, [*range(40 - 10 * rank)], [0] * (40 - 10 * rank))
        steps |= taken(stage, apply_batch(stage, batch, offset + 2, 10**18))
    assert steps == set(range(30))
    restarted = CommunicatorStage(dict(store), CONFIG)
    assert steps | ticked(stage) == set(range(40))
    assert ticked(restarted) == set(range(40)), "a restart before the tick meets the poison again"
    assert not [name for name in store if name.endswith(POISON)]


def test_a_communicator_that_cannot_be_compared_costs_no_other_of_its_run():
    """They are compared together. The run's other communicators, and it alone, are as if it were another run's."""
    stage, emitted = CommunicatorStage({}, CONFIG), []
    for offset, (name, rank) in enumerate((name, rank) for rank in (0, 1) for name in ("a", POISON, "b")):
        batch = collective("good", rank, [5, 6], [-10, -9] if name == POISON else [0, 0])
        batch.envelope["communicator"] = name
        emitted += apply_batch(stage, batch, offset, 10**18)
    emitted += stage.on_tick(10**18 + S, True)
    steps = {batch.envelope["communicator"]: set(batch.columns["step"].tolist()) for batch in emitted}
    assert steps == {"a": {5, 6}, "b": {5, 6}}
    assert [incident.unit[1] for incident in stage.incidents] == [POISON]


def windows(*processes, **limits):
    lab = Lab()
    lab.stage.budget.limits = StateLimits(**limits)
    for process in processes:
        lab.feed(kernels([(1, 10, "k")], process=process))
    return lab


def of_job(batch, job):
    return Batch(batch.topic, {**batch.envelope, "job": job, "sequence": 99}, batch.columns)


@pytest.mark.parametrize("topic", ["gpu.kernel.v1", "gpu.collective.v1", "gpu.step.v1", "gpu.lateness.v1"])
@pytest.mark.parametrize("job", ["evil", "", "1:j|r"])
def test_a_job_that_uses_the_ids_of_another_first_takes_nothing_from_it(topic, job):
    """The first job's batches had the unit: those of the innocent one were dead letters."""
    store = {}
    if topic == "gpu.kernel.v1":
        build, inputs = lambda: ProcessWindows(store, WINDOWS, KernelFrequency()), [kernels([(1, 10, "k")])]
        inputs[0].envelope["sequence"] = 0
    else:
        kind = CommunicatorStage if topic == "gpu.collective.v1" else JobStage
        build, stream = lambda: kind(store, CONFIG), [batch for _, batch in STREAM]
        stream += published(STREAM)[0] if topic == "gpu.lateness.v1" else []
        inputs = [batch for batch in stream if batch.topic == topic][:4]
    undisturbed = build()
    for offset, batch in enumerate(inputs, 1):
        apply_batch(undisturbed, batch, offset, T0)
    expected = dict(store)
    store.clear()
    stage = build()
    apply_batch(stage, of_job(inputs[0], job), 0, T0)
    foreign = dict(store)
    for offset, batch in enumerate(inputs, 1):
        apply_batch(stage, batch, offset, T0)
    assert store == foreign | expected
    assert not foreign.keys() & expected.keys()
    stage._isolate(stage._unit_of(of_job(inputs[0], job)), ValueError())
    restarted = build()
    for known in (stage, restarted):
        apply_batch(known, inputs[0], 9, T0)
        known.on_tick(T0, True)
    assert set(store) == set(expected), "only the foreign job's state is dropped"
    assert [incident.job for incident in stage.incidents] == [job]


def test_two_jobs_with_one_run_id_have_the_verdicts_that_each_has_alone():
    innocent = [(time_ns, of_job(batch, "innocent")) for time_ns, batch in STREAM]
    other = simulate(ddp(2), 30, (Fault(0, "idle", 40 * MS, first=6, last=29),))
    foreign = [(time_ns, of_job(batch, "foreign")) for time_ns, batch in batches(other)]
    together, _ = published(mixed(foreign, innocent))
    for job, stream in (("innocent", innocent), ("foreign", foreign)):
        verdicts = [batch for batch in together if batch.topic == "gpu.straggler.v1" and batch.envelope["job"] == job]
        expected = [batch for batch in published(stream)[0] if batch.topic == "gpu.straggler.v1"]
        assert seen(verdicts) == seen(expected)
        assert len(seen(expected)) == 3
    ids = {(batch.envelope["process_id"], batch.envelope["job"]) for batch in together}
    assert len({process for process, _ in ids}) == len(ids), "a sink tells their batches apart by process"


def test_a_state_key_without_a_job_is_not_dropped():
    with pytest.raises(UnreadableValue, match="names the run 'run-1' without its job"):
        JobStage({"h|run-1": b""}, CONFIG)


def test_samples_of_a_gpu_without_a_job_reach_no_run():
    stage = JobStage({}, CONFIG)
    steps = next(batch for _, batch in STREAM if batch.topic == "gpu.step.v1")
    apply_batch(stage, steps, 0, T0)
    before = dict(stage.store)
    assert apply_batch(stage, Batch("gpu.device.v1", {**steps.envelope, "job": ""}, {}), 1, T0) == []
    assert dict(stage.store) == before


def test_state_that_cannot_be_restored_is_dropped_and_the_rest_is_kept():
    lab = windows("good", POISON)
    lab.store[f"p|{POISON}|1:j|r"] = lab.store[f"p|{POISON}|1:j|r"][:20]
    lab.restart()
    assert list(lab.stage.processes) == [("good", "1:j|r")]
    lab.silence()
    assert [incident.at_ns for incident in lab.stage.incidents] == [T0 + 101 * S]
    assert ("good", 0.0) in lab.table()
    assert not [name for name in lab.store if POISON in name]
    lab.restart()
    assert not lab.stage.quarantine, "a restart does not meet it again"


def test_state_of_another_version_is_not_dropped():
    lab = windows("good")
    lab.store["p|good|1:j|r"] = b"\x7f" + lab.store["p|good|1:j|r"][1:]
    with pytest.raises(UnreadableValue, match="version 127"):
        lab.restart()


def test_a_unit_in_quarantine_returns_without_state_after_its_time_and_a_new_run_at_once(monkeypatch):
    lab = windows(POISON, "good")
    monkeypatch.setattr(lab.stage, "_count", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lab.feed(kernels([(2, 10, "k")], process=POISON))
    monkeypatch.undo()
    assert lab.feed(kernels([(3, 10, "k")], process=POISON)) == []
    assert lab.stage.quarantined_rows == 1
    lab.feed(kernels([(3, 10, "k")], process=POISON, run="another"))
    lab.tick()
    assert set(lab.stage.processes) == {("good", "1:j|r"), (POISON, "1:j|another")}
    lab.tick(lab.stage.budget.limits.quarantine_ns / S)
    lab.feed(kernels([(4, 10, "k")], process=POISON))
    assert (POISON, "1:j|r") in lab.stage.processes


def test_an_error_while_a_result_is_marked_as_sent_is_its_processs(monkeypatch):
    lab = windows(POISON, "good")
    monkeypatch.setattr(lab.stage, "_save", lambda process: process.process == POISON and 1 / 0)
    lab.silence()
    assert list(lab.stage.quarantine) == [(POISON, "1:j|r")]


def test_more_units_than_the_bound_are_not_kept_in_quarantine():
    lab = windows(*map(str, range(9)), quarantined=4)
    for unit in list(lab.stage.processes):
        lab.stage._isolate(unit, ValueError())
    lab.tick()
    assert len(lab.stage.quarantine) == 4
    assert not lab.store


def test_a_row_about_the_job_is_published():
    incident = Incident(("p", "r"), "job", "r", FAILED, IndexError("x"), T0, T0 + 600 * S)
    batch = Codec().decode("gpu.straggler.v1", Codec().encode(report("communicator", 3, incident)))
    assert (batch.envelope["job"], batch.envelope["run"], batch.rows) == ("job", "r", 1)
    assert batch.columns["rank"].tolist() == [-1]
    assert (batch.envelope["causes"], batch.envelope["details"]) == (["insufficient_data"], ["quarantine"])
    assert batch.envelope["evidence"] == ['{"error": "IndexError", "reason": "failed", "stage": "communicator"}']


def test_its_row_is_of_no_producer_that_sends_anything_else():
    """Under the process id of the job's verdicts, its sequence was a conflict with the first of them."""
    verdict = next(b for b in published(STREAM)[0] if b.topic == "gpu.straggler.v1")
    incidents = [Incident(("p", "r"), "job", "r", FAILED, IndexError("x"), T0 + n, T0 + 600 * S) for n in range(2)]
    ids = {report(stage, 3, incident).envelope["process_id"] for stage in ("a", "b") for incident in incidents}
    assert len(ids) == 4
    same_job = report("a", 3, Incident(("p", "r"), verdict.envelope["job"], verdict.envelope["run"], FAILED,
                                       IndexError("x"), T0, T0))  # fmt: skip
    assert same_job.envelope["process_id"] != verdict.envelope["process_id"]


def test_a_value_that_kafka_would_reject_is_its_units_error():
    budget = StateBudget(StateLimits(value_bytes=2_000))
    stage = CommunicatorStage({}, CONFIG, budget)
    with pytest.raises(OverBudget, match="a value of"):
        apply_batch(stage, collective(POISON, 0, [0] * 100, [*range(100)]), 0, 10**18)
    assert [incident.reason for incident in stage.incidents] == ["budget"]


def test_a_tick_leaves_units_to_the_next_one_and_forgets_none():
    lab = windows(*map(str, range(10)), tick_results=4)
    lab.tick()
    lab.tick(lab.config.idle_ns / S + 1)
    assert len(lab.sent) == 4
    for _ in range(4):
        lab.tick()
    assert len(lab.results) == len(lab.sent) == 20


def test_a_tick_visits_a_bounded_number_of_units_and_the_next_one_the_others():
    """60,000 units took 0.3 s of each second, and the records of all jobs waited."""
    lab = windows(*map(str, range(10)), tick_units=4)
    lab.tick()
    for sent in (8, 16, 20, 20):
        lab.tick(lab.config.idle_ns / S + 1)
        assert len(lab.sent) == sent
