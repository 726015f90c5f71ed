"""kill -9 under load: nothing lost, nothing doubled, the results of an undisturbed run; and a chaos run can fail."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from io import StringIO
from itertools import islice, pairwise
from types import SimpleNamespace

import psutil
import pytest
from confluent_kafka import KafkaException
from rich.console import Console
from support.wait_limit import WAIT_S
from typer.testing import CliRunner

from drumline.cli.develop import chaos as command_chaos
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.infra.runtime.processes import ManagedProcess, ProcessFailed
from drumline.lab.chaos import chaos_run, clocks, disks, load, rejoins, system
from drumline.lab.chaos.brokers import java_hash
from drumline.lab.chaos.chaos_run import Plan, deck
from drumline.lab.chaos.interrupted_work import of_sink, of_worker, pending
from drumline.lab.chaos.load import ReplayLoad
from drumline.lab.chaos.progress import ProgressSnapshot
from drumline.lab.chaos.reference import Difference
from drumline.lab.chaos.report import ChaosReport, Kill, Round, show
from drumline.lab.chaos.spans import SHORTEST_S, Spans, halt
from drumline.lab.chaos.system import Stuck
from drumline.lab.chaos.targets import SIGNALS, targets
from drumline.sinks.ranges.intent import Intent, write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange

CHAOS = [sys.executable, "-m", "drumline.cli.app", "chaos"]


def snapshot(sink=0, worker=0, intents=None):
    return ProgressSnapshot(
        0.0, {"published": 9, "sink": 1, "worker": 1}, {"sink": sink, "worker": worker}, intents or {}
    )


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.parametrize("kill", ["sink+engine,worker", "sink,sink+engine,worker,second,broker,agent"])
def test_a_chaos_run_that_kills_each_once_loses_and_doubles_nothing(kill, jars):
    names = kill.split(",")
    command = [*CHAOS, "--kill", kill, "--kills", str(len(names)), "--seed", "4", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        result, errors = process.communicate()
    except BaseException:  # the test's time is over: what the run started must not go on
        process.terminate()
        process.wait(90)
        raise
    assert process.returncode == 0, result[-3000:] + errors[-3000:]
    report = json.loads(result)
    assert {name: counted["kills"] for name, counted in report["targets"].items()} == dict.fromkeys(names, 1)
    totals = report["totals"]
    assert totals["audits_clean"] == totals["rounds"] == 1
    assert totals["published"] == totals["stored"] > 1_000_000
    assert totals["results_compared"] > 3_000


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_chaos_run_that_halts_each_once_has_the_results_of_an_undisturbed_run(brokers, jars):
    command = [*CHAOS, "--kill", "sink,worker,engine,broker", "--signal", "stop", "--brokers", str(brokers)]
    done = subprocess.run([*command, "--rounds", "1", "--seed", "4", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    halted = {
        "sink stop",
        "worker stop",
        "engine stop",
        "broker stop",
        *(["broker2 stop", "broker3 stop"][: brokers - 1]),
    }
    assert set(report["targets"]) == halted
    assert report["kills"] == len(halted)
    assert all(kill["halted_s"] >= SHORTEST_S for round_ in report["rounds"] for kill in round_["kills"])


@pytest.mark.stack
@pytest.mark.long
def test_ctrl_c_stops_all_that_was_started(jars):
    process = subprocess.Popen([*CHAOS, "--seed", "1"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr.readline() == "seed 1\n"
    while "starting Kafka" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=90)
    assert process.returncode == 130, rest
    assert "interrupted" in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("text", ["nobody", "sink,", "sink+nobody", ""])
def test_an_unknown_target_is_rejected(text):
    with pytest.raises(ValueError, match="no target"):
        targets(text)


def test_targets_and_whose_work_they_stall():
    both, worker, broker = targets("sink+engine,worker,broker,worker")
    assert (both.name, both.stalls) == ("sink+engine", {"sink"})
    assert (worker.stalls, broker.stalls) == ({"worker"}, {"sink", "worker"})


def test_each_of_several_brokers_is_a_target_of_each_signal():
    chosen = targets("broker,worker", SIGNALS["both"], 3)
    names = ["broker", "broker stop", "broker2", "broker2 stop", "broker3", "broker3 stop", "worker", "worker stop"]
    assert [target.name for target in chosen] == names
    with pytest.raises(ValueError, match="no target is called 'broker2'"):
        targets("broker2")


def test_brokers_that_are_chosen_at_the_moment_need_three_and_only_one_of_them_is_halted():
    names = "broker-leader,two-brokers,rolling"
    assert [target.name for target in targets(names, SIGNALS["both"], 3)] == [
        "broker-leader", "broker-leader stop", "two-brokers", "rolling",
    ]  # fmt: skip
    assert all(target.has_broker and target.stalls == {"sink", "worker"} for target in targets(names, brokers=3))
    with pytest.raises(ValueError, match="two-brokers needs --brokers 3; there are sink, "):
        targets("sink,two-brokers", brokers=2)
    with pytest.raises(ValueError, match="rolling goes with --signal kill, not with stop"):
        targets("rolling", SIGNALS["stop"], 3)


def test_disks_of_servers_and_of_all_logs_can_be_full_and_clocks_of_programs_can_step():
    names = "sink,engine,broker,agent,logs,sink+engine"
    assert [target.name for target in targets(names, SIGNALS["all"])] == [
        "sink", "sink stop", "sink step", "sink rejoin", "engine", "engine stop", "engine full", "broker",
        "broker stop", "broker full", "agent", "agent stop", "agent step", "logs full", "sink+engine",
        "sink+engine stop",
    ]  # fmt: skip
    [logs] = targets("logs", SIGNALS["full"])
    assert (logs.lasts, logs.stalls) == (True, frozenset())
    with pytest.raises(ValueError, match="logs goes with --signal full, not with kill, stop"):
        targets("logs", SIGNALS["both"])
    with pytest.raises(ValueError, match="engine goes with --signal kill, stop, full, not with step"):
        targets("engine", SIGNALS["step"])


@pytest.mark.parametrize(("signals", "missing"), [("full", "unmountable"), ("step", "missing_compiler")])
def test_what_a_disturbance_needs_and_is_missing_is_stated_before_anything_starts(monkeypatch, signals, missing):
    monkeypatch.setattr(f"drumline.lab.chaos.{'disks' if signals == 'full' else 'clocks'}.{missing}", lambda: "absent")
    monkeypatch.setattr(chaos_run, "running", lambda *_: pytest.fail("a stack starts"))
    answer = CliRunner().invoke(command_chaos.app, ["--kill", "logs,sink", "--signal", "all"])
    assert (answer.exit_code, "absent" in answer.output) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_disk_is_full_until_it_is_not_and_what_it_has_stays_in_the_folder(tmp_path):
    settings = ephemeral_settings(tmp_path)
    folder = disks.folders(settings)["logs"]
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    subprocess.run(["umount", tmp_path], check=True)
    with disks.mounted(settings, ["logs"]):
        (folder / "kept").write_bytes(b"x" * 100_000)
        spans = Spans()
        spans.begin([disks.full(folder)], 60)
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(b"x" * 100_000)
        spans.end()
        (folder / "more").write_bytes(b"x" * 100_000)
    assert not os.path.ismount(folder)
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {"kept": 100_000, "more": 100_000}


def test_a_clock_steps_forward_and_back_while_its_program_runs(tmp_path):
    clock = clocks.SteppingClock(clocks.build(tmp_path), "probe")
    program = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | clock.environment(), text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as probe:  # fmt: skip

        def ahead():
            """The lead of its wall clock, and of its monotonic one, over those of this process; minutes."""
            probe.stdin.write("\n")
            probe.stdin.flush()
            wall, monotonic = map(float, probe.stdout.readline().split())
            return round((wall - time.time()) / 60), round((monotonic - time.monotonic()) / 60)

        spans, seen = Spans(), [ahead()]
        for step_s in (3_600, -1_800):
            spans.begin([clock.stepped(step_s)], 600)
            seen.append(ahead())
        spans.end()
        assert [*seen, ahead()] == [(0, 0), (60, 0), (-30, 0), (0, 0)]
        probe.stdin.close()


def test_a_member_that_rejoins_ends_cleanly_again_and_again_until_it_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(rejoins, "SHORTEST_S", 0.1)
    monkeypatch.setattr(rejoins, "LONGEST_S", 0.2)
    [target] = targets("second-sink", SIGNALS["rejoin"])
    assert (target.name, target.lasts, target.stalls) == ("second-sink rejoin", True, {"sink"})
    with pytest.raises(ValueError, match="agent goes with --signal kill, stop, step, not with rejoin"):
        targets("agent", SIGNALS["rejoin"])
    program, spans = ManagedProcess("probe", ["--version"], tmp_path / "log", {}, restarts=1_000), Spans()
    program.terminate()  # it does not run yet
    program.start()
    try:
        spans.begin([rejoins.rejoining("probe", program, 1)], 60)
        until = time.monotonic() + WAIT_S
        while program.exits.count(-signal.SIGTERM) < 2:
            assert time.monotonic() < until
            program.check()
            time.sleep(0.01)
        spans.end()
        program.exits.clear()
        for _ in range(2):  # it is left alone, and ends by itself
            while not program.exits:
                program.check()
                time.sleep(0.01)
            ends = program.exits.pop()
        assert ends == 0
    finally:
        program.stop()


def test_a_group_is_placed_by_javas_hash():
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(1 << 31)


def test_what_is_halted_twice_goes_on_at_the_later_end_and_what_died_is_forgotten():
    spans = Spans()
    with subprocess.Popen(["sleep", "60"]) as victim, subprocess.Popen(["sleep", "60"]) as exited:
        try:
            process = psutil.Process(victim.pid)
            later = spans.begin([halt(process), halt(psutil.Process(exited.pid))], 0.6)
            assert spans.begin([halt(process)], 0.1) == later
            exited.kill()
            time.sleep(0.3)
            assert process.status() == psutil.STATUS_STOPPED
            time.sleep(0.5)
            assert process.status() != psutil.STATUS_STOPPED
            assert spans.is_over
            spans.begin([halt(process)], 60)
            spans.end()
            assert process.status() != psutil.STATUS_STOPPED
        finally:
            victim.kill()
            exited.kill()


def test_targets_are_killed_equally_often_in_an_order_fixed_by_the_seed():
    of = targets("sink,worker,broker")
    drawn = list(islice(deck(of, random.Random(1)), 9))
    assert all(set(drawn[i : i + 3]) == set(of) for i in (0, 3, 6))
    assert drawn == list(islice(deck(of, random.Random(1)), 9))


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_complete": False},
        {"lost": 1},
        {"doubled": 1},
        {"findings": ["doubled kernels: ..."]},
        {"problems": ["stuck"]},
        {"results": [Difference("kernel_frequency", 9, 1, 0)]},
        {"results": [Difference("stragglers", 9, 0, 1)]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_one_wrong_thing_in_one_round_makes_a_chaos_run_fail(wrong):
    fine = Round(published=5, stored=5, results=[Difference("stragglers", 9, 0, 0)], is_complete=True)
    assert ChaosReport(1, rounds=[fine]).clean
    assert not ChaosReport(1, rounds=[fine, Round(**{"is_complete": True} | wrong)]).clean
    assert not ChaosReport(1).clean  # nothing was proven


@pytest.fixture
def rounds(monkeypatch):
    """Chaos runs without a stack: what each round does, as a list to fill; the last one is repeated."""
    does = [lambda round_: None]

    @contextmanager
    def nothing(*_):
        yield SimpleNamespace(programs={})

    def fake_round(round_, system, reference, rng, drawn, log):
        for target in drawn:
            round_.kills.append(Kill(target.name, 1.0, False, "collecting", 2.0))
        (does.pop(0) if len(does) > 1 else does[0])(round_)
        round_.is_complete = True

    for name, fake in (
        ("running", nothing),
        ("_round", fake_round),
        ("ReferenceRun", lambda *_: None),
        ("reference_results", lambda *_: 1),
    ):
        monkeypatch.setattr(chaos_run, name, fake)
    monkeypatch.setattr(chaos_run.clickhouse, "connect", lambda _: None)
    return does


def run_command(*options):
    answer = CliRunner().invoke(command_chaos.app, ["--kill", "sink", "--json", *options])
    return answer.exit_code, json.loads(answer.stdout)


def test_a_number_of_kills_is_not_cut_short_by_the_default_time(rounds, monkeypatch):
    monkeypatch.setattr(command_chaos, "MINUTES", 0)
    code, report = run_command("--kills", "20")
    assert (code, report["kills"], report["kills_missing"], len(report["rounds"])) == (0, 20, 0, 3)


@pytest.mark.parametrize(("signals", "in_a_round"), [("stop", 3), ("kill", 8)])
def test_a_number_of_rounds_each_of_which_halts_every_target_once(rounds, signals, in_a_round):
    options = ["--kill", "sink,worker,broker", "--signal", signals, "--rounds", "4"]
    code, report = run_command(*options)
    assert (code, report["kills_missing"]) == (0, 0)
    assert [len(round_["kills"]) for round_ in report["rounds"]] == [in_a_round] * 4
    if signals == "stop":
        assert {name: line["kills"] for name, line in report["targets"].items()} == {
            "sink stop": 4, "worker stop": 4, "broker stop": 4,
        }  # fmt: skip
    answer = CliRunner().invoke(command_chaos.app, [*options, "--kills", "5"])
    assert (answer.exit_code, "not both" in answer.output) == (2, True)


def test_two_brokers_are_never_halted_at_once_and_replays_end_with_the_last_halt(monkeypatch):
    """A round without a stack, on a clock of its own: what it halts, and until when."""
    now_s, halted, ends = [100.0], [], []
    load_ = SimpleNamespace(begin=lambda _: None, ending=False, is_over=True)

    def tick_for(seconds):
        now_s[0] += max(0.0, seconds)
        return True

    def disturb(target, rng, halt_s, step_s):
        assert not load_.ending
        halted.append((target, now_s[0], now_s[0] + halt_s))
        return "collecting", now_s[0] + halt_s, None

    def wait_recovered(target, runs_s, seen):
        ends.append(load_.ending)
        now_s[0] = max(now_s[0], runs_s) + 1.0
        return 1.0

    system = SimpleNamespace(
        load=load_, progress=SimpleNamespace(cycles=defaultdict(lambda: [1.0, 2.0, 3.0])), tick=lambda: tick_for(0.2),
        tick_for=tick_for, disturb=disturb, wait_recovered=wait_recovered, is_busy=lambda _: True,
        spans=SimpleNamespace(is_over=True), settings=None, programs={},
    )  # fmt: skip
    monkeypatch.setattr(chaos_run.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(chaos_run, "wait_stored", lambda *_: True)
    monkeypatch.setattr(chaos_run, "_evaluate", lambda *_: None)
    chosen = targets("sink,worker,broker", SIGNALS["stop"], 3)
    overlaps = 0
    for seed in range(50):
        rng, round_ = random.Random(seed), Round()
        load_.ending = False
        halted.clear()
        ends.clear()
        chaos_run._round(round_, system, None, rng, islice(deck(chosen, rng), 5), lambda _: None)
        assert {target for target, *_ in halted} == set(chosen)
        assert [*ends[:-1], not ends[-1]] == [False] * len(ends)
        brokers = [(begin, end) for target, begin, end in halted if target.has_broker]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(brokers))
        overlaps += sum(end > begin for (_, _, end), (_, begin, _) in pairwise(halted))
    assert overlaps > 50
    assert {kill.target for kill in round_.kills} == {target.name for target in chosen}


def test_a_result_is_kept_in_a_file_and_a_file_that_cannot_be_is_refused_before_anything_dies(rounds, tmp_path):
    kept = tmp_path / "result.json"
    code, report = run_command("--kills", "20", "--write", str(kept))
    assert (code, json.loads(kept.read_text())) == (0, report)
    rounds[0] = lambda _: pytest.fail("a round began")
    arguments = ["--kill", "sink", "--kills", "1", "--write", str(tmp_path / "nowhere" / "x.json")]
    assert CliRunner().invoke(command_chaos.app, arguments).exit_code == 2


@pytest.mark.parametrize("manifest", [None, "{}", "no JSON"])
def test_a_folder_that_is_no_recording_is_refused_before_anything_starts(monkeypatch, tmp_path, manifest):
    monkeypatch.setattr(chaos_run, "running", lambda *_: pytest.fail("a stack starts"))
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    answer = CliRunner().invoke(command_chaos.app, ["--data", str(tmp_path)])
    assert answer.exit_code == 2
    assert "--data" in answer.output


def test_however_short_the_time_there_is_one_round(rounds, tmp_path):
    report = ChaosReport(1)
    chaos_run.run_chaos(Plan(targets("sink"), 0.0, 0, 1, tmp_path), report, lambda _: None)
    assert (len(report.rounds), len(report.kills)) == (1, 8)


def test_fewer_kills_than_requested_are_reported_as_missing(rounds, tmp_path):
    rounds[0] = lambda _: time.sleep(0.2)
    report, text = ChaosReport(1, requested=100_000), StringIO()
    chaos_run.run_chaos(Plan(targets("sink"), 0.5, report.requested, 1, tmp_path), report, lambda _: None)
    assert report.clean
    assert 0 < report.as_json()["kills_missing"] == 100_000 - report.as_json()["kills"] < 100_000
    show(report, Console(file=text))
    assert f"{len(report.kills)} of 100000 kills made" in text.getvalue()


def test_what_a_program_wrote_before_it_ended_by_itself_is_in_the_report_of_a_clean_run(rounds, monkeypatch, tmp_path):
    program, text = ManagedProcess("sink", ["sink", "--no-such-option"], tmp_path / "log", {}), StringIO()
    program.log.write_text("of an earlier program\n")

    @contextmanager
    def one_program(*_):
        yield SimpleNamespace(programs={"sink": program})

    def end_once(_):
        program.start()
        while not program.exits:
            program.check()
        program.stop()

    monkeypatch.setattr(chaos_run, "running", one_program)
    rounds.insert(0, end_once)
    report = ChaosReport(1)
    chaos_run.run_chaos(Plan(targets("sink"), 60.0, 16, 1, tmp_path), report, lambda _: None)
    assert (report.clean, report.kept, len(report.rounds), report.exits) == (True, "", 2, {"sink": [2]})
    [end] = report.as_json()["ends"]["sink"]
    assert "--no-such-option" in end
    assert "earlier" not in end
    show(report, Console(file=text))
    assert "sink ended by itself 1 times, exit codes {2: 1}" in text.getvalue()
    assert "--no-such-option" in text.getvalue()


@pytest.mark.parametrize(
    "error",
    [StackError("no Java"), clickhouse.TransientError("ClickHouse is gone"), KafkaException("no answer"),
     ProcessFailed("sink ended 100 times"), Stuck("nothing moves")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("when", ["before", "second round"])
def test_what_ends_a_chaos_run_stands_in_its_report_beside_the_rounds_before(rounds, monkeypatch, when, error):
    def fail(*_):
        raise error

    rounds.append(fail)
    if when == "before":
        monkeypatch.setattr(chaos_run, "running", fail)
    code, report = run_command("--kills", "100")
    shutil.rmtree(report["kept"])
    assert (code, report["clean"]) == (1, False)
    assert [str(error) in problem for problem in report["problems"]] == [True]
    assert [round_["is_complete"] for round_ in report["rounds"]] == ([] if when == "before" else [True, False])


def test_recovery_counts_from_the_last_kill_only():
    kills = [Kill("sink", 1, False, "collecting", None), Kill("sink", 0.1, True, "collecting", 4.0)]
    assert ChaosReport(1, rounds=[Round(kills)]).targets() == {
        "sink": {
            "kills": 2, "while_recovering": 1, "in_flight": {"collecting": 2},
            "recovery_p50_s": 4.0, "recovery_max_s": 4.0, "halted_s": 0,
        }
    }  # fmt: skip


@pytest.mark.parametrize("spools", [[], ["waiting"]])
def test_an_agent_that_has_published_all_before_the_first_look_has_recovered(monkeypatch, spools):
    monkeypatch.setattr(system, "RECOVERY_S", 0.05)
    seen = SimpleNamespace(done={"published": 7}, lag={})
    agent = SimpleNamespace(tick=lambda: seen, load=SimpleNamespace(spools=lambda: spools))
    [target] = targets("agent", ("stop",))
    if spools:
        with pytest.raises(system.Stuck, match="published does not move"):
            system.System.wait_recovered(agent, target, time.monotonic(), None)
    else:
        assert system.System.wait_recovered(agent, target, time.monotonic(), None) < 0.05


def test_what_a_kill_interrupted():
    intent = Intent(OffsetRange("id", 2, 5, 8), 4, 100)
    committed = snapshot(sink=4, intents={"gpu.kernel.v1:2": (5, write_intent(intent))})
    assert pending(committed) == [("gpu.kernel.v1", intent)]
    assert of_sink(committed, None, "") == "intent committed"
    done = {"gpu.kernel.v1:2": (9, write_done("id"))}
    assert of_sink(snapshot(sink=4, intents=done), None, "") == "collecting"
    assert of_sink(snapshot(intents=done), None, "") == "idle"
    assert of_worker(None) == "starting"
    assert of_worker({"unsettled": 1, "open": 1}) == "records in flight, windows open"
    assert of_worker({"unsettled": 0, "open": 0}) == "idle"


def test_a_replay_is_held_back_while_sink_or_worker_is_far_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(
        load.subprocess, "Popen", lambda *_, popen=subprocess.Popen, **o: popen(["sleep", "60"], stdout=o["stdout"])
    )
    replay_load = ReplayLoad(tmp_path, {}, tmp_path / "log", 1)
    replay_load.tick(None, 0)
    assert not replay_load.is_flowing  # the broker is away
    for now_s, seen, flows in (
        (1, snapshot(), True),
        (2, snapshot(worker=load.HIGH + 1), False),
        (3, snapshot(sink=load.HIGH - 1), False),
        (4, None, True),
        (5, snapshot(sink=1), True),
        (6, snapshot(sink=load.HIGH + 1), False),
        (7 + load.RESUME_S, snapshot(sink=load.HIGH + 1), True),  # for a turn: a job must not seem to be silent
        (8 + load.RESUME_S, snapshot(sink=load.HIGH + 1), False),
    ):
        replay_load.tick(seen, now_s)
        assert replay_load.is_flowing is flows
    replay_load.stop()
    assert not replay_load.is_flowing


@pytest.mark.parametrize(
    ("script", "problems"),
    [
        ("echo 'no Kafka broker answers at x' >&2; exit 1", 0),
        ("echo 'drumline replay: Kafka at h:1 failed: Failed while waiting for controller' >&2; exit 1", 0),
        ("echo 'no Kafka broker answers at x' >&2; echo '{}'; exit 1", 1),
        ("echo broken >&2; exit 1", 1),
        ("echo '{}'; exit 1", 1),
    ],
)
def test_a_replay_that_met_no_broker_is_repeated_and_any_other_failure_is_a_problem(
    tmp_path, monkeypatch, script, problems
):
    (tmp_path / "log").write_bytes(b"no Kafka broker answers\n")  # of a replay before
    monkeypatch.setattr(
        load.subprocess, "Popen", lambda *_, popen=subprocess.Popen, **o: popen(["sh", "-c", script], **o)
    )
    replay_load = ReplayLoad(tmp_path, {}, tmp_path / "log", 1)
    replay_load.tick(snapshot(), 0)
    replay_load._process.wait(10)
    replay_load.tick(snapshot(), 1)
    assert not replay_load.is_flowing
    assert (len(replay_load.problems), replay_load.runs) == (problems, [])


def test_what_a_stopped_replay_cannot_close_does_not_hold_it_back(tmp_path):
    replay_load = ReplayLoad(tmp_path, {}, tmp_path / "log", 1, spool=tmp_path / "spool")
    folder = tmp_path / "spool" / "p0"
    folder.mkdir(parents=True)
    (folder / "identity.json").write_bytes(b"x" * 100)
    (folder / "000000000007.taken").write_bytes(bytes(3 * load.SPOOLED))
    assert list(map(load.bytes_waiting, replay_load.spools())) == [0], "its writer may append to it"
    (folder / "000000000008.seg").write_bytes(b"DRUMSPL1")
    assert list(map(load.bytes_waiting, replay_load.spools())) == [3 * load.SPOOLED]
    assert load.bytes_waiting(tmp_path / "gone") == 0


def test_an_agents_own_folder_in_the_spool_is_not_waited_for(tmp_path):
    replay_load = ReplayLoad(tmp_path, {}, tmp_path / "log", 1, spool=tmp_path)
    for name, source in (("p0", "replay"), ("p1", "agent")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "identity.json").write_text(json.dumps({"process": {"source": source}}))
    (tmp_path / "begun").mkdir()
    assert [path.name for path in replay_load.spools()] == ["begun", "p0"]
