"""Every alert rule fires on a recording with its fault and is quiet on a healthy one.

Recordings have stragglers and pageable copies; for faults that no recording has, rows of one are changed or moved in
time, as the test's name states. Evaluated by grafana_evaluator.py, not by Grafana.
"""

import json

import pytest
from support import drumline_program
from support.grafana_evaluator import Evaluator, breached
from support.grafana_stack import JOB, RUN, stored

from drumline.infra.config.settings import SinkSettings
from drumline.infra.grafana.provisioning.rules import GROUPS, rules
from drumline.infra.guidance.hangs import hang_guidance

pytestmark = pytest.mark.stack
RULES = {rule.uid: rule for rule in rules()}
INTERVALS = {rule.uid: group.interval_s for group in GROUPS for rule in group.rules}


@pytest.fixture(scope="module")
def db(stack):
    return stored(stack, "gpu_alerts")


def run(db, uid, start, end):
    """A rule evaluated from `start` to `end` at its group's interval."""
    evaluator = Evaluator(RULES[uid], db.run_alert)
    now = start
    while now <= end:
        evaluator.evaluate(now)
        now += INTERVALS[uid]
    return evaluator


def fired(evaluator, **labels):
    return [a for a in evaluator.firing() if labels.items() <= a.items()]


def shift(column, seconds):
    return f"{column} + toIntervalSecond({seconds})"


#: Seconds by which the recording is moved to follow itself for 20 minutes; the same number in all columns of a row.
AGAIN = "arrayJoin(range(0, 1200, 13))"


def in_pod(name):
    """Columns of `processes` for ranks that run in pods of such names."""
    return {"k8s_namespace": "'research'", "k8s_pod": f"concat('{name}-', toString(rank))", "k8s_container": "'main'"}


def place(db, job, **changed):
    """The recorded ranks of another job in pods, which took the place of old ones. Returns the pod of a rank."""
    db.copy("ledger", job, published=shift("published", AGAIN))
    for name, seconds in (("old", 0), ("new", 1)):
        columns = in_pod(name) | changed
        db.copy("processes_versions", job, process_id=f"'{name}'", published=shift("published", seconds), **columns)
    return "research/new-{}/main".format


def description(evaluator, alert):
    return evaluator.rendered(evaluator.rule.description, alert)


def hang(db, job, revision, state, *ranks, reason="not_called", waiting=0, seconds=0):
    """Rows of `hangs` for a recorded job, so long after it: the job's, and one for each rank that is named."""
    start = round((db.last + seconds) * 1000)
    rows = ", ".join(
        f"('{job}', '{RUN}', {rank}, '{'' if rank < 0 else 'node-a'}', 1, {revision}, '{state}', "
        f"fromUnixTimestamp64Milli({start}), fromUnixTimestamp64Milli({start + 10_000 + revision}), "
        f"'{reason}', 'AllReduce', 41, 'Rank {rank} has not called AllReduce 41.', {waiting}, now64(3), {revision})"
        for rank in (-1, *ranks)
    )
    columns = "job, run, rank, host, episode, revision, state, start, time, reason, operation, number, note, waiting"
    db.writer.command(f"INSERT INTO hangs_versions ({columns}, published, _offset) VALUES {rows}")


def link(db, device, seconds, **columns):
    """A sample of a link of host `net` some seconds after the recording."""
    row = {"is_down": 0, "speed_mbps": 400_000, "expected_mbps": 400_000, "symbol_errors": 0, **columns}
    reason = row.pop("reason", "")
    db.writer.command(
        f"INSERT INTO network_samples (host, device, link, reason, time, interval_ns, {', '.join(row)}) VALUES "
        f"('net', '{device}', 'infiniband', '{reason}', toDateTime64({db.last + seconds}, 9, 'UTC'), 10000000000, "
        f"{', '.join(map(str, row.values()))})"
    )


def serve(db, job, ttft_ms, idle_ms):
    """Twenty minutes of an inference engine with a queue: an iteration each half second, a request each second."""
    at = f"toDateTime64({db.first}, 9, 'UTC') + toIntervalMillisecond"
    columns = "job, run, process_id, engine, role, phase, iteration, start, duration_ns, gap_ns, gpu_ns, gpu_idle_ns"
    db.writer.command(
        f"INSERT INTO iterations ({columns}, requests, decode_tokens, waiting, published) SELECT '{job}', '{RUN}', "
        f"'p', 'fake', 'engine', 'decode', number, {at}(500 * number), 400000000, 100000000, 300000000, "
        f"{idle_ms}000000, 8, 8, 3, now64(3) FROM numbers(2400)"
    )
    db.writer.command(
        f"INSERT INTO requests (job, run, start, duration_ns, ttft_ns, output_tokens, published) SELECT '{job}', "
        f"'{RUN}', {at}(1000 * number), 9000000000, {ttft_ms}000000, 20, now64(3) FROM numbers(1200)"
    )


@pytest.fixture(scope="module")
def healthy(db):
    """The healthy phase again and again for 20 minutes: all that any rule reads, also what is bad in no rule's eyes."""
    phase = "BETWEEN fromUnixTimestamp64Nano({}) AND fromUnixTimestamp64Nano({})".format(*db.healthy)
    start = f"start + toIntervalSecond({AGAIN})"
    for table, where in (
        ("kernels", "name LIKE '%nccl%'"),
        ("memcpys", "kind IN (1, 2)"),
        ("steps", "1"),
        ("collectives", "step BETWEEN 5 AND 15"),
    ):
        step = {"step": f"step + 100 * {AGAIN}"} if table in ("steps", "collectives") else {}
        db.copy(table, "healthy", f"start {phase} AND {where}", start=start, **step)
    samples(db, "healthy", f"time {phase}", xid="toInt64(0)", ecc_uncorrected="toInt64(5)")
    db.copy("device_samples", "healthy", f"time {phase} AND gpu_index = 0 LIMIT 1", lost="toInt64(1)")  # it came back
    db.copy("ledger", "healthy", **{name: shift(name, AGAIN) for name in ("published", "time_min", "time_max")})
    windows = {name: shift(name, AGAIN) for name in ("window_start", "window_end")}
    suspect = {"state": "'suspect'", "severity": "'suspect'", "first_step": f"first_step + 100 * {AGAIN}"}
    db.copy("processes_versions", "healthy", policy="'on: always'", published=f"{shift('published', AGAIN)} AS later",
            _offset="toUInt64(toUnixTimestamp(later))")  # fmt: skip
    db.copy("stragglers_versions", "healthy", f"window_start {phase}", **windows, **suspect)
    hang(db, "healthy", 0, "standing", 0)  # rank 0 saves a checkpoint
    serve(db, "healthy", 400, 20)
    for seconds in range(-1200, 1200, 60):
        link(db, "sound", seconds, rx_discards=40, symbol_errors=int(seconds == 0))
    return db.first + 1200


@pytest.mark.parametrize(("uid", "value"), [("drumline-first-token", 7.0), ("drumline-idle-with-queue", 0.3)])
def test_an_engine_whose_requests_wait_is_reported(db, uid, value):
    db.copy("ledger", "served", published=shift("published", AGAIN))
    db.copy("processes_versions", "served", policy="'on: always'", published=f"{shift('published', AGAIN)} AS later",
            _offset="toUInt64(toUnixTimestamp(later))")  # fmt: skip
    if uid == "drumline-first-token":
        serve(db, "served", 7_000, 150)
    evaluator = run(db, uid, db.first + 600, db.first + 900)
    assert len(fired(evaluator, job="served")) == 1
    [measured] = [v for labels, v in evaluator.values["A"].items() if dict(labels).get("job") == "served"]
    assert measured == pytest.approx(value)


@pytest.mark.parametrize("uid", RULES)
def test_quiet_while_the_healthy_phase_of_a_recording_goes_on_for_twenty_minutes(db, healthy, uid):
    evaluator = run(db, uid, healthy - 120, healthy)
    values = [
        value for labels, value in evaluator.values["A"].items() if dict(labels).get("job", "healthy") == "healthy"
    ]
    assert values, "there was something to evaluate"
    assert not [value for value in values if value is None or breached(RULES[uid], value)]
    assert not fired(evaluator, job="healthy")
    for further in RULES[uid].values[1:]:
        evaluator.read(further.ref)  # what its message would show is well-formed


def test_straggler_critical_on_recorded_faults_names_rank_host_gpu_cause_cost_and_link(db):
    end = db.phase("slow_copy")[1] / 1e9
    evaluator = run(db, "drumline-straggler", end, end)
    [alert] = fired(evaluator, job=JOB, rank="3", severity="critical")
    assert alert["host"] == "node-b"
    assert alert["gpu"].startswith("GPU 3 GPU-")
    rule = evaluator.rule
    assert "rank 3 on node-b costs 0." in evaluator.rendered(rule.summary, alert)
    text = evaluator.rendered(rule.description, alert)
    assert "slow copy, pageable: it copied from or to pageable host memory" in text
    assert "money" not in text, "no price is set"
    assert "The dashboard Memcpy shows pageable copies" in evaluator.rendered(rule.check, alert)
    assert "pin_memory=True" in evaluator.rendered(rule.act, alert)


#: Who an alert is about, and by whom or how urgently notification policies route it.
IDENTITY = {
    "job", "run", "rank", "host", "gpu", "pod", "gpu_uuid", "xid", "operation", "communicator", "topic", "device",
}  # fmt: skip
ROUTING = {"job_team", "job_user", "job_namespace", "severity"}


@pytest.mark.parametrize("uid", RULES)
def test_labels_are_who_it_is_and_a_job_has_its_owners(db, uid):
    columns, _ = db.run_alert(RULES[uid].values[0].sql, db.first, db.last)
    labels = {name for name, _ in columns} - {"value"}
    assert labels <= IDENTITY | ROUTING
    text = RULES[uid].summary + RULES[uid].description
    assert [label for label in labels & IDENTITY if f"{{{{ $labels.{label} }}}}" not in text] == [], "text alone"
    assert (ROUTING - {"severity"} <= labels) == ("job" in labels)
    assert ("severity" in labels) == bool(RULES[uid].level), "two severities of one alert"


def test_a_straggler_rises_and_falls_as_one_alert_that_is_not_resolved_in_between(db):
    end = db.phase("slow_copy")[1] / 1e9
    db.copy("ledger", "rising")
    evaluator = Evaluator(RULES["drumline-straggler"], db.run_alert)
    seen = []
    for revision, state in enumerate(("warning", "critical", "warning")):
        db.copy("stragglers_versions", "rising", "rank = 3", state=f"if(state = 'critical', '{state}', state)",
                _offset=f"_offset + {revision + 1} * 1000000000")  # fmt: skip
        evaluator.evaluate(end + 30 * revision)
        alerts = fired(evaluator, job="rising", rank="3")
        levels = {evaluator.rendered(evaluator.rule.level, alert) for alert in alerts}
        seen.append(({alert["severity"] for alert in alerts}, levels))
    assert seen == [
        ({"warning"}, {"warning"}), ({"warning", "critical"}, {"critical"}), ({"warning"}, {"warning"})
    ]  # fmt: skip


def test_a_straggler_that_is_the_whole_job_has_no_empty_words_in_its_message(db):
    db.copy("ledger", "together")
    db.copy("stragglers_versions", "together", "rank = 3", rank="-1", host="''", cause="'slow_link'", detail="''")
    end = db.phase("slow_copy")[1] / 1e9
    evaluator = run(db, "drumline-straggler", end, end)
    [alert] = fired(evaluator, job="together", severity="critical")
    assert (alert["rank"], alert["host"], alert["gpu"]) == ("all", "all hosts", "all")
    assert "(slow link)" in evaluator.rendered(evaluator.rule.summary, alert)


def test_a_slow_link_is_paged_with_its_sender_and_receiver(db):
    flow = '{"from": 1, "from_host": "a", "to": 2, "to_host": "b", "gb_s": 1.0, "expected_gb_s": 2.0}'
    db.copy("ledger", "linked")
    db.copy("stragglers_versions", "linked", "rank = 3", rank="-1", host="''", cause="'slow_link'",
            detail="'one_flow'", evidence_json=f"'{{\"flows\": [{flow}]}}'")  # fmt: skip
    end = db.phase("slow_copy")[1] / 1e9
    evaluator = run(db, "drumline-straggler", end, end)
    [alert] = fired(evaluator, job="linked", severity="critical")
    assert "Slowest: rank 1 on a to rank 2 on b." in evaluator.rendered(evaluator.rule.description, alert)
    assert alert.keys() == dict(fired(evaluator, severity="critical")[0]).keys(), "it is no label"


def test_straggler_alert_resolves_when_the_stream_clears_its_level(db):
    evaluator = run(db, "drumline-straggler", db.first, db.last + 30)
    named = {labels["rank"] for labels in map(dict, evaluator.alerts)}
    assert named > {a["rank"] for a in fired(evaluator, job=JOB)}, "ranks that were late before are reported as normal"


def test_straggler_stays_while_steps_last_a_minute_and_a_window_of_them_twenty(db):
    """The recording's last critical window again and again, 20 minutes long; its job publishes every 100 s."""
    critical = f"job = '{JOB}' AND state = 'critical' AND severity = 'critical'"
    last = f"first_step = (SELECT max(first_step) FROM stragglers WHERE {critical})"
    window, moment = 1200, f"fromUnixTimestamp64Milli({round(db.last * 1000)})"
    moved = {name: shift(name, "arrayJoin(range(0, 5400, 100))") for name in ("published", "time_min", "time_max")}
    db.copy("ledger", "slow steps", "topic = 'gpu.step.v1'", **moved)
    evaluator = Evaluator(RULES["drumline-straggler"], db.run_alert)
    for number in range(1, 4):
        db.copy(
            "stragglers_versions", "slow steps", last,
            first_step=f"first_step + 20 * {number}", last_step=f"last_step + 20 * {number}",
            window_start=f"{moment} + toIntervalSecond({window * (number - 1)})",
            window_end=f"{moment} + toIntervalSecond({window * number})",
        )  # fmt: skip
        for seconds in (10, 1150, 1180):
            evaluator.evaluate(db.last + window * number + seconds)
            assert fired(evaluator, job="slow steps"), (number, seconds)
    for seconds in (5800, 5830, 5860):
        evaluator.evaluate(db.last + seconds)
    assert not fired(evaluator, job="slow steps"), "the job is not active any more"


def test_an_alert_ends_with_its_job_once_all_processes_reported_their_end(db):
    """A job that had ended paged for minutes."""
    end = f"fromUnixTimestamp64Milli({round(db.last * 1000)})"
    for job, ranks, policy in (
        ("went on", "rank < 3", "off: end of the process"), ("ended", "1", "off: end of the process"),
        ("crashed", "1", "off: the process exited without a shutdown event"),
    ):  # fmt: skip
        db.copy("ledger", job)
        db.copy("stragglers_versions", job)
        db.copy("processes_versions", job, policy="'on: always'")
        db.copy("processes_versions", job, ranks, policy=f"'{policy}'", published=f"{end} AS later",
                _offset="toUInt64(toUnixTimestamp(later))")  # fmt: skip
    evaluator = run(db, "drumline-straggler", db.last + 30, db.last + 60)
    assert fired(evaluator, job="went on"), "a rank of it has not ended"
    assert not fired(evaluator, job="ended") + fired(evaluator, job="crashed")


def test_a_helper_that_ends_ends_no_alert_of_its_rank(db):
    end = f"fromUnixTimestamp64Milli({round(db.last * 1000)})"
    db.copy("ledger", "helped")
    db.copy("stragglers_versions", "helped")
    db.copy("processes_versions", "helped", policy="'on: always'")
    db.copy("processes_versions", "helped", policy="'off: end of the process'", published=f"{end} AS later",
            process_id="'helper'", _offset="toUInt64(toUnixTimestamp(later))")  # fmt: skip
    assert fired(run(db, "drumline-straggler", db.last + 30, db.last + 60), job="helped")


def test_an_alert_stays_while_storing_lags_and_ends_five_minutes_after_the_last_record_of_a_job_that_was_killed(db):
    db.copy("ledger", "killed")
    db.copy("stragglers_versions", "killed")
    evaluator = Evaluator(RULES["drumline-straggler"], db.run_alert)
    for seconds in (60, 280):
        evaluator.evaluate(db.last + seconds)
        assert fired(evaluator, job="killed")
    for seconds in (310, 340, 370):
        evaluator.evaluate(db.last + seconds)
    assert not fired(evaluator, job="killed")


def test_straggler_warning_on_a_recording_whose_critical_states_are_set_to_warning(db):
    db.copy("ledger", "milder")
    db.copy("stragglers_versions", "milder", state="if(state = 'critical', 'warning', state)")
    assert {a["severity"] for a in fired(run(db, "drumline-straggler", db.last, db.last), job="milder")} == {"warning"}


def sample(db, job, first_step, seconds, line):
    """A sampling of rank 1 for a window, so long after the recorded fault; its main thread was in `line`."""
    at = f"fromUnixTimestamp64Milli({round((db.phase('late_rank_60ms')[1] / 1e9 + seconds) * 1000)})"
    db.writer.command(
        "INSERT INTO stacks (job, run, rank, named_rank, verdict, role, is_main, samples, first_step, window_start, "
        f"time, caller) SELECT '{job}', '{RUN}', 1, 1, 'straggler', 'culprit', 1, 90, {first_step}, {at}, {at}, "
        f"'load (/job/train.py:{line})'"
    )


def described(db, job):
    end = db.phase("late_rank_60ms")[1] / 1e9
    evaluator = run(db, "drumline-straggler", end, end)
    [alert] = fired(evaluator, job=job, rank="1", severity="critical")
    return description(evaluator, alert)


#: A bad window of the rank that is late, before the end of that phase.
STALLED_WINDOW = f"""(SELECT max(first_step) FROM stragglers WHERE job = '{JOB}' AND rank = 1
    AND severity = 'critical' AND cause = 'host_stall' AND window_start <= fromUnixTimestamp64Nano({{}}))"""


def test_the_alert_of_a_stalled_host_has_the_line_of_its_python_once_that_was_sampled(db):
    window = STALLED_WINDOW.format(db.phase("late_rank_60ms")[1])
    assert "Its Python" not in described(db, JOB)
    for seconds, line in ((-2, 6), (-1, 7)):
        sample(db, JOB, window, seconds, line)
    assert ". Its Python: load (/job/train.py:7). GPU: GPU 1 " in described(db, JOB)


def test_the_alert_has_no_line_of_another_stall_and_none_where_the_host_does_not_stall(db):
    window = STALLED_WINDOW.format(db.phase("late_rank_60ms")[1])
    is_last = f"first_step = {window}"
    for job, cause, detail in (
        ("computes now", f"if({is_last}, 'slow_compute', cause)", "detail"),
        ("saves now", "cause", f"if({is_last}, 'checkpoint', detail)"),
    ):
        db.copy("ledger", job)
        db.copy("stragglers_versions", job, f"first_step <= {window}", cause=cause, detail=detail)
        earlier = f"(SELECT max(first_step) FROM stragglers WHERE job = '{JOB}' AND rank = 1 AND first_step < {window})"
        sample(db, job, earlier, -1, 8)
        sample(db, job, "-5", -1, 9)
        assert "Its Python" not in described(db, job), job
    sample(db, "computes now", window, -1, 10)
    sample(db, "saves now", window, -1, 10)
    assert "Its Python" not in described(db, "computes now"), "only a stalled host has one"
    assert "Its Python: load (/job/train.py:10)." in described(db, "saves now")


#: A process's record every 10 s for twenty minutes; every ten minutes for two hours, and when we look in them.
TICKS = "arrayJoin(range(10, 1200, 10))"
HOURS = range(600, 2 * 3600, 1800)
ON_AND_ON = "arrayJoin(range(600, 7201, 600))"


def keep_reporting(db, job, policy, ticks=TICKS):
    """The recorded job under another name; after it its processes only report, without steps."""
    db.copy("steps", job)
    db.copy("ledger", job)
    db.copy("ledger", job, "topic = 'gpu.process.v1'", published=shift("published", ticks), rows="1", rank="0")
    db.copy("processes_versions", job, policy=f"'{policy}'", published=f"{shift('published', ticks)} AS later",
            _offset="toUInt64(toUnixTimestamp(later))")  # fmt: skip


def stalls(db):
    return run(db, "drumline-job-stalled", db.last + 330, db.last + 450)


def test_job_stalled_when_recorded_processes_report_on_after_the_last_step(db):
    keep_reporting(db, "stalled", "on: always")
    evaluator = stalls(db)
    [alert] = fired(evaluator, job="stalled")
    assert not fired(evaluator, job=JOB), "it ended: no process reports"
    assert "no step for 4" in evaluator.rendered(evaluator.rule.summary, alert), "seconds, not times a limit"
    assert "within 300" in description(evaluator, alert)


def test_a_job_of_which_nothing_is_recorded_is_not_stalled(db):
    policies = ("off: off", "off: torch.profiler uses CUPTI")
    for policy in policies:
        keep_reporting(db, policy, policy)
    evaluator = stalls(db)
    assert not [policy for policy in policies if fired(evaluator, job=policy)]


def test_an_evaluation_of_seventy_seconds_between_short_steps_is_no_stall(db):
    keep_reporting(db, "evaluates", "on: always")
    evaluator = run(db, "drumline-job-stalled", db.last, db.last + 240)
    [value] = [value for labels, value in evaluator.values["A"].items() if ("job", "evaluates") in labels]
    assert value < 1
    assert not fired(evaluator, job="evaluates")


def test_an_evaluation_as_long_as_the_one_before_is_no_stall(db):
    keep_reporting(db, "evaluates often", "on: always")
    db.copy("steps", "evaluates often", start=f"start - toIntervalSecond({300 + 13})")
    assert not fired(stalls(db), job="evaluates often")
    assert fired(run(db, "drumline-job-stalled", db.last + 700, db.last + 760), job="evaluates often"), "twice as long"


def test_a_rank_that_saves_for_six_minutes_while_others_wait_is_no_stall_until_they_go_on(db):
    for job in ("saves", "saved"):
        keep_reporting(db, job, "on: always")
        hang(db, job, 0, "standing", 0, waiting=3)
    hang(db, "saved", 1, "moving", 0)
    evaluator = stalls(db)
    assert [len(fired(evaluator, job=job)) for job in ("saves", "saved")] == [0, 1]


def test_a_standstill_that_is_not_why_no_step_comes_hides_no_stall(db):
    """One that begins again and again, and those that a lost state left in the table."""
    cases = {
        "moves now and then": ("standing", 310), "left standing": ("standing", -200), "left hung": ("hung", -200),
        "hung late": ("hung", 310),
    }  # fmt: skip
    for job, (state, seconds) in cases.items():
        keep_reporting(db, job, "on: always")
        hang(db, job, 0, state, 0, waiting=3, seconds=seconds)
    evaluator = stalls(db)
    assert [len(fired(evaluator, job=job)) for job in cases] == [1, 1, 1, 0], "the last one is `Job hung`'s"
    for job, (_, seconds) in cases.items():
        hang(db, job, 1, "moving", seconds=seconds)


def test_ranks_that_wait_for_longer_than_pytorch_lets_them_and_are_not_hung_are_a_stall(db):
    keep_reporting(db, "forgotten", "on: always")
    hang(db, "forgotten", 0, "standing", 0, waiting=3)
    assert not fired(run(db, "drumline-job-stalled", db.last + 480, db.last + 570), job="forgotten")
    assert fired(run(db, "drumline-job-stalled", db.last + 630, db.last + 720), job="forgotten")


def test_job_stalled_stays_for_hours_and_ends_with_the_next_step(db):
    moved = {name: shift(name, 2 * 3600) for name in ("published", "time_min", "time_max")}
    keep_reporting(db, "hung", "on: always", ON_AND_ON)
    evaluator = Evaluator(RULES["drumline-job-stalled"], db.run_alert)
    for seconds in HOURS:
        evaluator.evaluate(db.last + seconds + 30)
        evaluator.evaluate(db.last + seconds + 90)
        assert fired(evaluator, job="hung"), seconds
    db.copy("steps", "hung", start=shift("start", 2 * 3600), step="step + 1000")
    db.copy("ledger", "hung", **moved)
    evaluator.evaluate(db.last + 2 * 3600 + 30)
    assert not fired(evaluator, job="hung")


def test_collective_bandwidth_down_when_recorded_collectives_go_on_at_twice_their_duration(db):
    steps = "operation = 'AllReduce' AND step BETWEEN 5 AND 15"
    for job, slower in (("slower-links", 2), ("same-links", 1)):
        db.copy("ledger", job, published=shift("published", "arrayJoin(range(0, 1800, 60))"))
        for begin, end, factor in ((0, 1200, 1), (1200, 1800, slower)):
            at = f"arrayJoin(range({begin}, {end}, 30))"
            db.copy(
                "collectives", job, steps, start=f"start + toIntervalSecond({at})", step=f"step + {at} * 100",
                duration_ns=f"duration_ns * {factor}",
            )  # fmt: skip
    evaluator = run(db, "drumline-collective-bandwidth", db.last + 1380, db.last + 1800)
    assert fired(evaluator, job="slower-links", operation="AllReduce")
    assert not fired(evaluator, job="same-links")


def test_pageable_flood_when_the_recorded_phase_of_pageable_copies_lasts_for_five_minutes(db):
    pod = place(db, "copying")
    start, end = db.phase("slow_copy")
    phase = f"start BETWEEN fromUnixTimestamp64Nano({start}) AND fromUnixTimestamp64Nano({end})"
    again = f"start + toIntervalNanosecond(arrayJoin(range(0, 300000000000, {end - start})))"
    db.copy("memcpys", "copying", f"{phase} AND kind IN (1, 2)", start=again)
    db.copy("kernels", "copying", f"{phase} AND name LIKE '%nccl%'", start=again)
    evaluator = run(db, "drumline-memcpy-pageable", start / 1e9 + 180, start / 1e9 + 300)
    [alert] = fired(evaluator, job="copying")
    assert (alert["rank"], alert["pod"], alert["job_namespace"]) == ("3", pod(3), "research")
    assert f"Pod or Slurm job: {pod(3)}." in description(evaluator, alert)


def samples(db, job, where="1", **changed):
    """Recorded samples repeated over 20 minutes."""
    db.copy("device_samples", job, where, time=shift("time", AGAIN), **changed)


def test_throttling_when_recorded_samples_show_hardware_slowdown(db):
    pod = place(db, "hot")
    samples(db, "hot", throttle_reasons="bitOr(throttle_reasons, if(gpu_index = 2, 0x48, 0))")
    evaluator = run(db, "drumline-gpu-throttled", db.first + 600, db.first + 600)
    [alert] = fired(evaluator, job="hot")
    assert alert["job_namespace"] == "research"
    assert f"job hot, pod or Slurm job {pod(2)}: in" in description(evaluator, alert)
    assert evaluator.rendered(evaluator.rule.summary, alert).endswith(
        "2 of node-b is slowed down: HW slowdown + HW thermal"
    )


def test_a_moments_heat_is_no_alert(db):
    db.copy("device_samples", "warm", "gpu_index = 2", throttle_reasons="toInt64(0x48)")
    evaluator = run(db, "drumline-gpu-throttled", db.last, db.last + 240)
    assert 1 <= max(value for labels, value in evaluator.values["A"].items() if dict(labels)["job"] == "warm") <= 2
    assert not fired(evaluator, job="warm"), "nor while it is one of the last five minutes"


def test_xid_when_one_recorded_sample_carries_one(db):
    pod = place(db, "broken")
    db.copy("device_samples", "broken", xid="if(gpu_index = 1, toInt64(79), NULL)")
    evaluator = run(db, "drumline-gpu-xid", db.last, db.last)
    [alert] = fired(evaluator, job="broken")
    assert (alert["gpu"], alert["xid"]) == ("1", "79")
    assert "XID 79" in evaluator.rendered(evaluator.rule.summary, alert)
    assert f"job broken, pod or Slurm job {pod(1)}. 13," in description(evaluator, alert)


def test_every_xid_of_a_minute_is_an_alert_whichever_number_is_larger(db):
    at = "toDateTime64(toStartOfMinute(time), 9, 'UTC')"
    for xid in (119, 79, 79, 0):
        db.copy("device_samples", "twice", "gpu_index = 1 LIMIT 1", time=at, xid=f"toInt64({xid})")
    alerts = fired(run(db, "drumline-gpu-xid", db.last, db.last), job="twice")
    assert sorted((alert["gpu"], alert["xid"]) for alert in alerts) == [("1", "119"), ("1", "79")]


@pytest.mark.parametrize(
    ("rule", "fault", "message"),
    [
        ("down", {"is_down": 1, "speed_mbps": "NULL", "reason": "it was up before"}, "is down"),
        ("slow", {"speed_mbps": 200_000, "reason": "200 Gbit/s; it had 400"}, "is slow: 200 Gbit/s; it had 400"),
        ("errors", {"symbol_errors": 4}, ": 12 errors in 10 minutes"),
        ("errors", {"link_downs": 1}, ": 30 errors in 10 minutes"),
    ],
    ids=["down", "slow", "errors", "outages"],
)
def test_a_link_with_a_fault_alerts_and_recovers(db, rule, fault, message):
    device = f"mlx5_{next(iter(fault))}"
    link(db, device, 0)
    for seconds in (10, 20, 140):
        link(db, device, seconds, **fault)
    evaluator = run(db, f"drumline-link-{rule}", db.last + 30, db.last + 210)
    [alert] = fired(evaluator, device=device)
    text = evaluator.rendered(evaluator.rule.summary, alert)
    assert text == f"Link {device} of net {message}" or text == f"Link {device} of net{message}"
    link(db, device, 900)
    evaluator.evaluate(db.last + 910)
    assert not fired(evaluator, device=device)


def lost(db, uuid, job, seconds, state):
    """A sample of GPU 1 some seconds after the recording."""
    at = f"toDateTime64({db.last + seconds}, 9, 'UTC')"
    changed = {"time": at, "lost": f"toInt64({state})", "gpu_uuid": f"'{uuid}'"}
    db.copy("device_samples", job, "gpu_index = 1 LIMIT 1", **changed)


def test_a_lost_gpu_alerts_within_a_minute_with_the_job_it_took_along_until_it_answers(db):
    period = INTERVALS["drumline-gpu-lost"]
    assert 1 + SinkSettings().bulk_flush_s + period <= 60, "a sample, the sink, an evaluation"
    pod = place(db, "taken", gpu_uuid="if(rank = 1, 'GPU-a', gpu_uuid)")
    lost(db, "GPU-a", "taken", 0, 0)
    lost(db, "GPU-a", "taken", 61, 1)
    evaluator = run(db, "drumline-gpu-lost", db.last + 1, db.last + 62 + period)
    [alert] = fired(evaluator, gpu_uuid="GPU-a")
    assert evaluator.rendered(evaluator.rule.summary, alert) == f"GPU 1 of {alert['host']} is lost"
    assert f"job taken, pod or Slurm job {pod(1)}: it" in description(evaluator, alert)
    for minutes in range(2, 8):
        lost(db, "GPU-a", "", 60 * minutes + 61, 1)
        evaluator.evaluate(db.last + 60 * minutes + 62)
        assert fired(evaluator, gpu_uuid="GPU-a") == [alert], "it has no job any more, and took one along"
    lost(db, "GPU-a", "", 600, 0)
    evaluator.evaluate(db.last + 660)
    assert not fired(evaluator, gpu_uuid="GPU-a")


def test_a_lost_gpu_without_a_job_is_an_alert_all_the_same(db):
    lost(db, "GPU-b", "", 0, 1)
    evaluator = run(db, "drumline-gpu-lost", db.last + 60, db.last + 60)
    [alert] = fired(evaluator, gpu_uuid="GPU-b")
    assert alert["job"] == ""
    assert "pod or Slurm job" not in description(evaluator, alert)


def test_ecc_when_the_recorded_counter_grows(db):
    pod = place(db, "corrupt")
    samples(db, "corrupt", ecc_uncorrected=f"if(gpu_index = 0, toInt64(intDiv({AGAIN}, 600)), 5)")
    evaluator = run(db, "drumline-gpu-ecc", db.first + 900, db.first + 900)
    [alert] = fired(evaluator, job="corrupt")
    assert alert["gpu"] == "0"
    assert f"pod or Slurm job {pod(0)}: in" in description(evaluator, alert)


def test_ecc_counter_that_starts_again_is_no_error_and_counts_from_there(db):
    """The driver was loaded again: all that it counts since then is new."""
    before = f"{AGAIN} < 600"
    samples(db, "reset", ecc_uncorrected=f"if({before}, toInt64(7), 0)")
    samples(db, "reset and worse", "gpu_index = 1", ecc_uncorrected=f"if({before}, toInt64(7), 2)")
    evaluator = run(db, "drumline-gpu-ecc", db.first + 900, db.first + 900)
    assert not fired(evaluator, job="reset")
    [alert] = fired(evaluator, job="reset and worse")
    assert ": 2 uncorrected" in evaluator.rendered(evaluator.rule.summary, alert)


def test_idle_gpu_when_recorded_utilisation_is_set_to_nothing_for_twenty_minutes(db):
    pod = place(db, "idle")
    samples(db, "idle", util_gpu="if(gpu_index = 3, toInt64(0), util_gpu)")
    evaluator = run(db, "drumline-gpu-idle", db.first + 840, db.first + 1140)
    [alert] = fired(evaluator, job="idle")
    assert alert["gpu"] == "3"
    assert f"pod or Slurm job {pod(3)}: utilisation 0" in description(evaluator, alert)


def windows(db, job, details):
    """Windows of a job that publishes on: a detail each, "" = it has verdicts."""
    db.copy("ledger", job, published=shift("published", AGAIN))
    for number, detail in enumerate(details):
        moved = {name: f"fromUnixTimestamp64Milli({round(db.last * 1000) + 10_000 * number})"
                 for name in ("window_start", "window_end")}  # fmt: skip
        steps = {"first_step": f"toInt64({20 * number})", "last_step": f"toInt64({20 * number + 19})"}
        severity = "'insufficient_data'" if detail else "'ok'"
        db.copy(
            "stragglers_versions", job, "rank = -1 LIMIT 1", detail=f"'{detail}'", severity=severity, **steps, **moved
        )


def test_a_job_of_which_two_of_ten_windows_have_no_verdict_cannot_be_evaluated(db):
    windows(db, "mostly unrecorded", [""] * 8 + ["no_past", "few_steps_recorded", "few_steps_recorded"])
    windows(db, "with a checkpoint", [""] * 9 + ["few_steps_recorded"])
    windows(db, "new", ["ranks_missing"] * 9)
    evaluator = run(db, "drumline-job-unevaluated", db.last + 120, db.last + 480)
    [alert] = fired(evaluator, job="mostly unrecorded")
    assert not [labels for job in ("with a checkpoint", "new", JOB) for labels in fired(evaluator, job=job)]
    rule = evaluator.rule
    assert evaluator.rendered(rule.summary, alert) == (
        "mostly unrecorded: drumline cannot judge this job: most steps of a window were not recorded, or their rows "
        "were lost"
    )
    assert "of its last 10 windows of steps 2 have no verdict" in description(evaluator, alert)
    assert "Record every step: policy" in evaluator.rendered(rule.act, alert)
    assert evaluator.rendered(rule.guide, alert) == "/cause/insufficient_data#few_steps_recorded"


def test_a_job_that_communicates_without_known_steps_cannot_be_evaluated(db):
    for job, topic in (("serving", "gpu.collective.v1"), ("no collectives", "gpu.kernel.v1")):
        db.copy("ledger", job, f"topic IN ('gpu.process.v1', '{topic}')", published=shift("published", AGAIN))
    evaluator = run(db, "drumline-job-unevaluated", db.last + 400, db.last + 720)
    [alert] = fired(evaluator, job="serving")
    assert not fired(evaluator, job="no collectives")
    assert "no steps of it are known" in evaluator.rendered(evaluator.rule.summary, alert)


def test_a_rank_that_world_size_promises_and_that_never_reported_is_named(db):
    ranks = {"lacks one": (6, "rank != 3"), "lacks nothing": (4, "1"), "records one": (4, "rank = 0")}
    for job, (world, where) in ranks.items():
        db.copy("ledger", job, published=shift("published", AGAIN))
        db.copy("processes_versions", job, where, world_size=f"toInt32({world})")
    evaluator = run(db, "drumline-job-unreported", db.last + 120, db.last + 600)
    [alert] = fired(evaluator, job="lacks one")
    assert not [labels for job in ("lacks nothing", "records one") for labels in fired(evaluator, job=job)]
    assert evaluator.rendered(evaluator.rule.summary, alert) == "lacks one: 3 of 6 ranks have never reported"
    assert "nothing ever came of ranks 3, 4, 5 (the first ten)" in description(evaluator, alert)


def test_pipeline_lag_when_recorded_kernels_come_on_and_results_do_not(db):
    db.copy("ledger", "lagging")
    db.copy("ledger", "lagging", "topic = 'gpu.kernel.v1'", published=shift("published", 300))
    evaluator = run(db, "drumline-pipeline-lag", db.last + 300, db.last + 360)
    assert fired(evaluator, job="lagging")
    assert not fired(evaluator, job=JOB)


def light(db, job, ranks="1", where="1"):
    """A recorded job without CUPTI, whose steps and collectives come on while results do not."""
    db.copy("processes_versions", job, ranks)
    rows = f"topic NOT IN ('gpu.kernel.v1', 'gpu.kernel-frequency.v1', 'gpu.memcpy.v1') AND {where}"
    db.copy("ledger", job, rows)
    db.copy("ledger", job, f"topic IN ('gpu.step.v1', 'gpu.collective.v1') AND {where}",
            published=shift("published", 300))  # fmt: skip


def test_pipeline_lag_without_kernels_when_steps_come_on_and_their_comparison_does_not(db):
    light(db, "light")
    light(db, "light from the start", where="topic NOT IN ('gpu.lateness.v1')")
    light(db, "one rank", "rank = 0", "rank <= 0 AND topic NOT IN ('gpu.lateness.v1')")
    evaluator = run(db, "drumline-pipeline-lag", db.last + 300, db.last + 360)
    jobs = ("light", "light from the start")
    assert [len(fired(evaluator, job=job)) for job in (*jobs, "one rank")] == [1, 1, 0]
    for seconds in HOURS:
        evaluator.evaluate(db.last + seconds)
        assert all(fired(evaluator, job=job) for job in jobs), "the worker is still down"
    db.copy("ledger", "light", "topic = 'gpu.lateness.v1'", published=shift("published", 7200))
    evaluator.evaluate(db.last + 7260)
    assert not fired(evaluator, job="light")


def test_drops_when_a_recorded_batch_reports_that_rows_were_lost_before_it(db):
    db.copy("ledger", "dropping", "topic = 'gpu.kernel.v1'", dropped_before="7")
    evaluator = run(db, "drumline-rows-dropped", db.last, db.last)
    assert {a["topic"] for a in fired(evaluator, job="dropping")} == {"gpu.kernel.v1"}


def test_dead_letters_when_recorded_records_are_rejected(db):
    assert not fired(run(db, "drumline-dead-letters", db.last, db.last))
    db.copy("ledger", "", "topic = 'gpu.step.v1'", disposition="'dead_letter'")
    assert fired(run(db, "drumline-dead-letters", db.last, db.last)) == [{"topic": "gpu.step.v1"}]


def test_a_hung_job_names_rank_host_pod_operation_and_reason_until_it_goes_on(db):
    uid = "drumline-job-hung"
    pod = place(db, "stuck")
    for job in ("standing", "stuck", "stuck, unknown", "moving"):
        db.copy("ledger", job, published=shift("published", TICKS))
        hang(db, job, 0, "standing", 2)
    assert not fired(run(db, uid, db.last + 130, db.last + 130))
    hang(db, "stuck", 1, "hung", 2)
    hang(db, "stuck, unknown", 1, "hung", reason="insufficient_data")
    hang(db, "moving", 1, "hung", 2)
    hang(db, "moving", 2, "moving", 2)
    for second, line in ((15, 88), (75, 89)):  # sampled twice; its label stays
        start = f"fromUnixTimestamp64Milli({round(db.last * 1000)})"
        db.writer.command(
            "INSERT INTO stacks (job, run, rank, named_rank, verdict, role, is_main, samples, window_start, time, "
            "caller) "
            f"SELECT 'stuck', '{RUN}', 2, 2, 'hang', 'culprit', 1, 99, {start}, {start} + {second}, "
            f"'save (/job/train.py:{line})'"
        )
    evaluator = run(db, uid, db.last + 130, db.last + 130)
    assert {(a["job"], a["rank"]) for a in fired(evaluator)} == {("stuck", "2"), ("stuck, unknown", "all")}
    [unknown] = fired(evaluator, job="stuck, unknown")
    assert unknown["pod"] == "none"
    assert "Pod or Slurm job" not in description(evaluator, unknown)
    assert "No rank could be named." in description(evaluator, unknown)
    assert "--job 'stuck, unknown'`" in evaluator.rendered(evaluator.rule.check, unknown)
    [alert] = fired(evaluator, job="stuck")
    assert (alert["pod"], alert["job_namespace"]) == (pod(2), "research")
    assert f"Pod or Slurm job: {pod(2)}. Run" in description(evaluator, alert)
    summary = evaluator.rendered(evaluator.rule.summary, alert)
    assert summary == "stuck is hung: rank 2 on node-a (not_called AllReduce)"
    assert "has not called AllReduce 41. Pod" in description(evaluator, alert)
    assert "Its Python: save (/job/train.py:88)." in description(evaluator, alert)
    guide = hang_guidance("not_called")
    assert evaluator.rendered(evaluator.rule.check, alert) == guide.check
    assert evaluator.rendered(evaluator.rule.act, alert) == guide.act


def test_quarantine_when_a_recorded_verdict_of_the_job_states_it(db):
    db.copy("stragglers_versions", "poison", "rank = -1", first_step="-1", last_step="-1", detail="'quarantine'")
    evaluator = run(db, "drumline-job-quarantine", db.last, db.last)
    assert {a["job"] for a in fired(evaluator)} == {"poison"}


def report(db, job, ranks, seconds, policy="on: always", **changed):
    """Recorded processes of `ranks` report, so many seconds (SQL) after their first record."""
    later = {"published": shift("published", seconds)}
    db.copy("ledger", job, f"topic = 'gpu.process.v1' AND rank IN {ranks}", **later)
    db.copy("processes_versions", job, f"rank IN {ranks}", published=f"{later['published']} AS later",
            policy=f"'{policy}'", _offset="toUInt64(toUnixTimestamp(later))", **changed)  # fmt: skip


def silence(db):
    return run(db, "drumline-silent-producer", db.last + 180, db.last + 300)


def silent(db, job):
    return {a["rank"] for a in fired(silence(db), job=job)}


def test_silent_producer_with_its_pod_when_recorded_ranks_but_one_go_on(db):
    report(db, "silent", (0, 1, 2, 3), "0", **in_pod("worker"))
    report(db, "silent", (0, 2, 3), TICKS)
    evaluator = silence(db)
    [alert] = fired(evaluator, job="silent")
    assert (alert["rank"], alert["pod"]) == ("1", "research/worker-1/main")
    assert alert["job_namespace"] == "research"
    assert "Pod or Slurm job: research/worker-1/main." in description(evaluator, alert)


def test_ranks_that_launch_nothing_while_rank_0_evaluates_are_not_silent(db):
    report(db, "evaluating", (0, 1, 2, 3), TICKS)
    db.copy("kernels", "evaluating", "name LIKE '%nccl%'")
    db.copy("kernels", "evaluating", "name LIKE '%nccl%' AND rank = 0", start=shift("start", TICKS))
    assert not silent(db, "evaluating")


def test_ranks_that_ended_before_rank_0_are_not_silent_nor_is_a_replay(db):
    report(db, "saves last", (1, 2, 3), "0", "off: end of the process")
    report(db, "saves last", (0, 0), TICKS)
    db.copy("kernels", "saves last", "name LIKE '%nccl%'")
    db.copy("kernels", "saves last", "name LIKE '%nccl%' AND rank = 0", start=shift("start", TICKS))
    assert not silent(db, "saves last")
    report(db, "replayed", (0, 1, 2, 3), "0", "")
    db.copy("ledger", "replayed", published=shift("published", TICKS))
    assert not silent(db, "replayed")


def test_silent_producer_stays_for_hours_while_others_go_on_and_ends_with_its_report(db):
    report(db, "one-silent", (0, 1, 2, 3), "0")
    report(db, "one-silent", (0, 2, 3), ON_AND_ON)
    evaluator = Evaluator(RULES["drumline-silent-producer"], db.run_alert)
    for seconds in HOURS:
        evaluator.evaluate(db.last + seconds + 10)
        evaluator.evaluate(db.last + seconds + 70)
        assert {a["rank"] for a in fired(evaluator, job="one-silent")} == {"1"}, seconds
    report(db, "one-silent", (0, 1, 2, 3), "7200")
    evaluator.evaluate(db.last + 7200 + 10)
    assert not fired(evaluator, job="one-silent")


#: Days later, as the rule is about all jobs together; s.
DAYS_LATER_S = 10 * 86_400


def test_nothing_arrives_while_recorded_processes_live_and_is_over_with_the_next_record(db):
    uid, last = "drumline-nothing-arrives", db.last + DAYS_LATER_S
    report(db, "live", (0, 1, 2, 3), f"{DAYS_LATER_S}")
    evaluator = run(db, uid, last + 30, last + 120)
    assert evaluator.firing() == [{}]
    for hour in (3600, 7200):
        evaluator.evaluate(last + hour)
        assert evaluator.firing() == [{}], hour
    report(db, "live", (0, 0), f"{DAYS_LATER_S + 7260}")
    evaluator.evaluate(last + 7280)
    assert evaluator.firing() == []


def test_a_fleet_whose_jobs_reported_their_end_is_idle(db):
    report(db, "ended", (0, 1, 2, 3), f"{3 * DAYS_LATER_S}")
    report(db, "ended", (0, 1, 2, 3), f"{3 * DAYS_LATER_S + 10}", "off: end of the process")
    last = db.last + 3 * DAYS_LATER_S
    assert run(db, "drumline-nothing-arrives", last + 30, last + 300).firing() == []


def limit(db, name, value, job="*", label="", cleared=0):
    """A limit that a person set."""
    db.writer.command(
        "INSERT INTO alert_limits_versions (name, job, label, value, changed, cleared) "
        f"VALUES ('{name}', '{job}', '{label}', {value}, now64(3), {cleared})"
    )


def test_a_limit_of_its_own_holds_for_the_jobs_that_it_names_and_until_it_is_cleared(db):
    for job in ("own_a", "own_b", "ownXa"):
        report(db, job, (0, 1, 2, 3), "0")
        report(db, job, (0, 2, 3), TICKS)
    limit(db, "silent_s", "inf", "own_*")
    limit(db, "silent_s", "60", "own_b")
    assert [silent(db, job) for job in ("own_a", "own_b", "ownXa")] == [set(), {"1"}, {"1"}]
    limit(db, "silent_s", "inf", "own_*", cleared=1)
    assert silent(db, "own_a") == {"1"}


def test_a_limit_for_a_label_holds_for_jobs_that_were_run_with_it_and_a_jobs_own_goes_before(db):
    end = db.phase("slow_copy")[1] / 1e9
    for job, labels in (("plain", "map()"), ("vision", "map('team', 'vision')"), ("strict", "map('team', 'vision')")):
        db.copy("ledger", job)
        db.copy("processes_versions", job, labels=labels)
        db.copy("stragglers_versions", job)
    limit(db, "straggler_share", "0.99", "*", "team=vision")
    limit(db, "straggler_share", "0.01", "strict")
    evaluator = run(db, "drumline-straggler", end, end)
    assert {job: len(fired(evaluator, job=job, severity="critical")) for job in ("plain", "vision", "strict")} == {
        "plain": 1, "vision": 0, "strict": 1}  # fmt: skip
    teams = {job: fired(evaluator, job=job)[0]["job_team"] for job in ("plain", "strict")}
    assert teams == {"plain": "none", "strict": "vision"}, "by which a notification policy routes"
    limit(db, "straggler_share", "0.99", "*", "team=vision", cleared=1)


def test_a_longer_pause_that_a_job_may_take_is_no_stall(db):
    for job in ("evaluates long", "hangs"):
        keep_reporting(db, job, "on: always")
    limit(db, "stalled_s", "3600", "evaluates *")
    evaluator = stalls(db)
    assert [len(fired(evaluator, job=job)) for job in ("evaluates long", "hangs")] == [0, 1]


def test_a_rank_that_may_save_for_longer_is_hung_later(db):
    for job in ("saves long", "hangs now"):
        db.copy("processes_versions", job)
        db.copy("ledger", job, published=shift("published", TICKS))
        hang(db, job, 1, "hung", 2)
    limit(db, "hung_s", "600", "saves *")
    evaluator = Evaluator(RULES["drumline-job-hung"], db.run_alert)
    for seconds, expected in ((130, [0, 1]), (630, [1, 1])):
        evaluator.evaluate(db.last + seconds)
        assert [len(fired(evaluator, job=job)) for job in ("saves long", "hangs now")] == expected
    [alert] = fired(evaluator, job="saves long")
    assert "has stood still for 6" in description(evaluator, alert), "seconds since, all of them"


def test_a_job_whose_gpus_may_be_hot_or_idle_raises_no_alert_and_a_stricter_one_does(db):
    hot, idle = {"throttle_reasons": "toInt64(0x48)"}, {"util_gpu": "toInt64(0)"}
    for job in ("hot may be", "hot may not be", "idle may be", "idle may not be", "warm may not be"):
        db.copy("processes_versions", job, labels="map('team', 'vision')")
        if job.startswith("warm"):
            db.copy("device_samples", job, "gpu_index = 2", **hot)
        else:
            samples(db, job, "gpu_index = 2", **(hot if job.startswith("hot") else idle))
    limit(db, "throttled_minutes", "inf", "hot may be")
    limit(db, "throttled_minutes", "0.5", "warm *", "team=vision")
    limit(db, "idle_percent", "0", "idle may be", "team=vision")
    evaluator = run(db, "drumline-gpu-throttled", db.first + 600, db.first + 600)
    assert [len(fired(evaluator, job=f"hot may{more} be")) for more in ("", " not")] == [0, 1]
    [alert] = fired(evaluator, job="hot may not be")
    assert "in 5 of the last 5 minutes" in description(evaluator, alert)
    assert fired(run(db, "drumline-gpu-throttled", db.last, db.last), job="warm may not be")
    evaluator = run(db, "drumline-gpu-idle", db.first + 840, db.first + 1140)
    assert [len(fired(evaluator, job=f"idle may{more} be")) for more in ("", " not")] == [0, 1]


def test_a_job_that_may_lose_some_rows_raises_an_alert_when_it_loses_more(db):
    for job, dropped in (("loses few", 7), ("loses many", 70_000)):
        db.copy("processes_versions", job)
        db.copy("ledger", job, "topic = 'gpu.kernel.v1' LIMIT 1", dropped_before=str(dropped))
    limit(db, "dropped_rows", "100", "loses *")
    evaluator = run(db, "drumline-rows-dropped", db.last, db.last)
    assert [len(fired(evaluator, job=job)) for job in ("loses few", "loses many")] == [0, 1]
    [alert] = fired(evaluator, job="loses many")
    assert "7e+04 rows of gpu.kernel.v1" in evaluator.rendered(evaluator.rule.summary, alert), "not less its limit"


def test_limits_are_set_shown_and_cleared_by_the_command(db, environment_of):
    def drumline(*args, code=0):
        done = drumline_program.run("limits", *args, environment=environment_of(db.settings))
        assert done.returncode == code, done.stderr
        return done.stdout

    chosen = ("--job", "shown-*", "--label", "team=vision")
    drumline("set", "stalled_s=3600", "bandwidth_ratio=off", *chosen, "--note", "evaluates for long")
    shown = [row for row in json.loads(drumline("show", "--json")) if row["job"] == "shown-*"]
    assert {(row["name"], row["value"], row["label"], row["note"]) for row in shown} == {
        ("stalled_s", "3600", "team=vision", "evaluates for long"),
        ("bandwidth_ratio", "off", "team=vision", "evaluates for long"),
    }
    assert "stalled_s of jobs shown-* with label team=vision is cleared" in drumline("clear", "stalled_s", *chosen)
    assert [row["name"] for row in json.loads(drumline("show", "--json")) if row["job"] == "shown-*"] == [
        "bandwidth_ratio"
    ]
    drumline("set", "no_limit=1", code=2)
    drumline("set", "stalled_s=-1", code=2)
    drumline("set", "straggler_share=0.03", code=2)
    drumline("set", "stalled_s=299", code=2)
    drumline("set", "straggler_share=0.04", *chosen)
