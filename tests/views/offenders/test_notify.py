"""`drumline notify` over 20 jobs with a bad GPU, a real engine and a real receiver: who is named, and how often."""

import base64
import json

import pytest
import typer
from support.offender_jobs import BAD_GPU, BAD_HOST, JOBS, offender_jobs
from typer.testing import CliRunner

from drumline.cli.operate import notify as command
from drumline.infra.clickhouse.client import TransientError, rows
from drumline.infra.config.settings import settings
from drumline.views.offenders import notify as module
from drumline.views.offenders.notices import DueLimits
from drumline.views.offenders.notify import Pass, notify
from drumline.views.offenders.webhook import ATTEMPTS, Webhook

pytestmark = pytest.mark.stack
KEY = bytes(range(32))
LIMITS = DueLimits(runs=3, days=30)


@pytest.fixture
def db(stack):
    """The jobs, and no notice yet."""
    jobs = offender_jobs(stack)
    jobs.writer.command("TRUNCATE TABLE offender_notices_versions")
    return jobs


def run(db, receiver, limits=LIMITS):
    webhook = Webhook(receiver.url, KEY, sleep=lambda _: None)
    return notify(db.writer, limits, webhook.send, db.last + 60)


def received(receiver):
    return [receiver.requests.get_nowait() for _ in range(receiver.requests.qsize())]


def of_jobs(requests):
    """Bodies about hosts of the 20 jobs; the recording's own hosts may have faults too."""
    bodies = [json.loads(body) for _, body in requests]
    return [body for body in bodies if body["host"] == BAD_HOST or body["host"].startswith("h")]


def test_the_host_of_the_bad_gpu_is_named_once_and_a_victim_never(db, receiver):
    run(db, receiver)
    [body] = of_jobs(received(receiver))
    assert body["text"] == f"host {BAD_HOST} was at fault {JOBS} times in {JOBS} jobs of the last 30 days"
    assert [(gpu["gpu_uuid"], gpu["faulty_runs"]) for gpu in body["gpus"]] == [(BAD_GPU, JOBS)]
    assert body["causes"] == ["slow_compute, throttled"]
    again = run(db, receiver)
    assert (again.taken, again.left, received(receiver)) == ([], [], [])


def test_what_was_not_taken_is_sent_later_with_the_same_id_and_body(db, receiver, monkeypatch):
    receiver.answers += [503] * 500  # other tests' hosts may have notices, too
    failed = run(db, receiver)
    receiver.answers.clear()
    assert failed.taken == []
    assert {reason.split()[-1] for _, reason in failed.left} == {"503"}
    first = received(receiver)[0]

    def killed(client, notice, *, sent):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(db, receiver)  # taken, but the mark is missing
    [second] = received(receiver)
    monkeypatch.undo()
    run(db, receiver)
    third, *_ = received(receiver)
    assert len({(headers["webhook-id"], body) for headers, body in (first, second, third)}) == 1
    assert run(db, receiver).taken == []


@pytest.mark.parametrize("answers", [[400], [503] * ATTEMPTS])
def test_one_refusal_does_not_hold_up_the_others(db, receiver, answers):
    receiver.answers += answers
    result = run(db, receiver, DueLimits(runs=1, days=30))
    assert len(result.left) == 1
    assert len(result.taken) >= 2


def test_a_receiver_that_does_not_answer_ends_the_pass(db):
    sent = []

    def send(number, body):
        sent.append(number)
        Webhook("http://127.0.0.1:9/", KEY, sleep=lambda _: None).send(number, body)

    result = notify(db.writer, DueLimits(runs=1, days=30), send, db.last + 60)
    assert (len(sent), result.taken) == (1, [])
    assert len(result.left) >= 3


def test_it_goes_on_after_an_outage_of_clickhouse_until_it_is_stopped(monkeypatch):
    passes = [TransientError("ClickHouse does not answer"), Pass([], [])]

    def one_pass():
        step = passes.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    stopping = type("Stopping", (), {"__call__": lambda _: not passes, "code": 130})
    monkeypatch.setattr("drumline.infra.runtime.signals.ShutdownSignal", stopping)
    with pytest.raises(typer.Exit) as ended:
        command._repeat(one_pass, 0.01, False)
    assert (passes, ended.value.exit_code) == ([], 130)


def test_the_command_needs_url_and_key_and_prints_what_is_due(db, receiver, monkeypatch):
    monkeypatch.setattr(command, "settings", lambda: db.settings)
    monkeypatch.setattr(command.time, "time", lambda: db.last + 60)
    runner = CliRunner()
    missing = runner.invoke(command.app, [])
    assert (missing.exit_code, "DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE" in missing.stderr) == (2, True)
    due = runner.invoke(command.app, ["--dry-run", "--json"])
    assert BAD_HOST in [json.loads(line)["host"] for line in due.stdout.splitlines()]
    assert rows(db.writer, "SELECT count() AS n FROM offender_notices")[0]["n"] == 0, "nothing is stored"
    text = base64.b64encode(KEY).decode()
    offenders = type(settings().offenders)(webhook=receiver.url, webhook_key=f"whsec_{text}")
    config = db.settings.model_copy(update={"offenders": offenders})
    monkeypatch.setattr(command, "settings", lambda: config)
    sent = runner.invoke(command.app, [])
    assert sent.exit_code == 0, sent.output
    assert f"sent: host {BAD_HOST} was at fault {JOBS} times" in sent.stdout
    assert "5ECRET" not in sent.output + due.output
    assert text not in sent.output + due.output
    assert runner.invoke(command.app, []).stdout == "no host is due\n"
