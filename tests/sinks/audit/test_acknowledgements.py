"""A finding that cannot be fixed is acknowledged with a reason, shown, and counts again once that is withdrawn."""

import json

import pytest
from support.drumline_program import run
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack
REASON = "disk of broker 2 lost in May; nothing is left to mend"


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    for sequence in range(4):
        created.publish(any_batch(Topic.KERNEL, 100, process_id(0), sequence))
    created.drain(4, [Topic.KERNEL])
    yield created
    created.stop()


def audit(pipeline, *arguments):
    """Exit code and report, or what is printed."""
    done = run("audit", *arguments, environment=pipeline.environment)
    return done.returncode, json.loads(
        done.stdout
    ) if "--json" in arguments and done.stdout else done.stdout + done.stderr


def lose_row(pipeline, offset):
    pipeline.kept_client.command(
        f"ALTER TABLE {pipeline.settings.clickhouse.database}.kernels DELETE WHERE _offset = {offset} AND _row = 7",
        settings={"mutations_sync": 2},
    )


def versions(pipeline):
    return pipeline.query(
        f"SELECT count() AS n FROM {pipeline.settings.clickhouse.database}.acknowledgements_versions"
    )[0]["n"]


def test_an_acknowledged_finding_is_shown_and_counts_no_more_until_that_is_withdrawn(pipeline):
    lose_row(pipeline, 1)
    code, report = audit(pipeline, "--json")
    findings = [finding for finding in report["findings"] if finding["kind"] == "rows_differ"]
    assert (code, len(findings), report["acknowledged"]) == (1, 1, [])
    rest = [finding["id"] for finding in report["findings"]]
    chosen = [part for identity in rest for part in ("--acknowledge", identity)]
    for _ in range(2):
        code, report = audit(pipeline, *chosen, "--reason", REASON, "--json")
        assert (code, report["clean"], report["findings"]) == (0, True, [])
        assert {known["id"]: known["reason"] for known in report["acknowledged"]} == dict.fromkeys(rest, REASON)
        assert all("@" in known["decided_by"] and known["time"] for known in report["acknowledged"])
        assert versions(pipeline) == len(rest), "twice is once"
    code, text = audit(pipeline)
    assert code == 0
    assert f"clean but for {len(rest)} acknowledged findings" in text
    assert REASON in text
    lose_row(pipeline, 2)
    code, report = audit(pipeline, "--json")
    assert code == 1, "what grows is another finding"
    assert {finding["kind"] for finding in report["findings"]} >= {"rows_differ"}


def test_a_withdrawal_lets_it_count_again_however_often_it_is_repeated(pipeline):
    lose_row(pipeline, 1)
    [identity] = [f["id"] for f in audit(pipeline, "--json")[1]["findings"] if f["kind"] == "rows_differ"]
    for number, (chosen, wanted) in enumerate(
        [(("--acknowledge", identity, "--reason", REASON), 0), (("--withdraw", identity), 1)], start=1
    ):
        for _ in range(2):
            report = audit(pipeline, *chosen, "--json")[1]
            assert [f["id"] for f in report["findings"]].count(identity) == wanted
            shown = pipeline.query(f"SELECT * FROM {pipeline.settings.clickhouse.database}.acknowledgements")
            assert [row["withdrawn"] for row in shown] == [number - 1]


def test_what_may_still_pass_or_is_not_there_is_not_acknowledged_and_a_reason_is_needed(pipeline):
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 4))
    [waiting] = [f["id"] for f in audit(pipeline, "--json")[1]["findings"] if f["kind"] == "not_drained"]
    for arguments, text in (
        (("--acknowledge", waiting, "--reason", REASON), "may still pass"),
        (("--acknowledge", waiting), "state why"),
        (("--acknowledge", "0123456789ab", "--reason", REASON), "there is no finding 0123456789ab"),
        (("--withdraw", "0123456789ab"), "there is no finding 0123456789ab"),
    ):
        code, printed = audit(pipeline, *arguments)
        assert (code, text in " ".join(printed.replace("│", "").split())) == (2, True), printed
    assert versions(pipeline) == 0
