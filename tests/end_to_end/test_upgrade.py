"""This release is upgraded to a made-up next one under load, as docs/guide/deploy.md says: nothing lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.newer_release import BEFORE, FIELD, FILL, NAME, newer_checkout
from support.pipeline import KEPT_FOR_EVER, Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess, check_all
from drumline.lab.chaos.reference import RESULTS, result_rows
from drumline.lab.row_counts import counts
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(1500)]

#: At its own speed, half a minute, so that there is a middle; recorded time, so that windows fall alike.
REPLAY = ("--loop", "2", "--keep-time", "--job", "upgraded")
#: Of its 416 batches of kernels so many are in Kafka when the upgrade begins.
MIDDLE = 80
#: Longer than a loaded machine holds up the replay, or its ranks count as silent; s.
IDLE_S = "45"


def findings(pipeline: Pipeline, run: str) -> list[dict[str, Any]]:
    """Return what the audit finds once all is stored: a worker may report a silent job before it."""
    while True:
        result: list[dict[str, Any]] = pipeline.audit(run)["findings"]
        if all(finding["kind"] != "not_drained" for finding in result):
            return result
        pipeline.wait_stored()


def test_an_upgrade_in_the_middle_of_a_job_loses_and_doubles_nothing(
    clean_stack: Settings, environment_of: Callable[[Settings], dict[str, str]], tmp_path: Path
) -> None:
    plain = environment_of(clean_stack)
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new = Pipeline(clean_stack, plain | newer_checkout(tmp_path / "new"), tmp_path / "new")
    old = Pipeline(clean_stack, plain, tmp_path / "old")
    for pipeline in (old, new):
        pipeline.environment |= KEPT_FOR_EVER  # recorded time grows old
        pipeline.environment["DRUMLINE_STREAM__IDLE_S"] = IDLE_S
        for program in pipeline.programs.values():
            program.add_environment(pipeline.environment)
    old.drumline("topics", "apply")
    old.drumline("migrate")
    replay = None
    try:
        old.programs["stream"].start()
        old.programs["sink"].start()
        kernels = (offsets := Offsets(clean_stack)).places([Topic.KERNEL])
        replay = old.start_replay(*REPLAY)
        sent = lambda: sum(offsets.ends(kernels).values())  # noqa: E731
        assert wait_until(lambda: sent() >= MIDDLE, WAIT_S, lambda: replay.poll() is None), "no middle"

        new.drumline("topics", "apply")
        assert NAME in new.drumline("migrate")  # the older sink goes on meanwhile
        check_all(old.programs.values())
        assert [program.exits for program in old.programs.values()] == [[], []]
        for name in ("sink", "stream"):
            old.programs[name].stop(timeout_s=60)
        by_the_older = new.query("SELECT count() AS n FROM kernels")[0]["n"]
        rejected = ManagedProcess("stream", ["stream"], tmp_path / "rejected.log", new.environment)
        rejected.start()
        assert wait_until(lambda: (rejected.check(), rejected.exits)[1], WAIT_S)
        rejected.stop()
        assert "set another DRUMLINE_STREAM__APP_ID" in rejected.ends[0]
        app = f"{clean_stack.stream.app_id}-next"
        stream = new.settings.stream.model_copy(update={"app_id": app})
        new.settings = new.settings.model_copy(update={"stream": stream})
        new.environment["DRUMLINE_STREAM__APP_ID"] = app
        for program in new.programs.values():
            program.add_environment(new.environment)
            program.start()
        out, _ = replay.communicate(timeout=WAIT_S)  # an agent of the older release goes on
        assert replay.returncode == 0
        upgraded = json.loads(out)
        new.wait_stored()

        assert findings(new, upgraded["run"]) == []
        client = connect(new.settings, database=new.settings.clickhouse.database)
        stored = list(counts(lambda sql, values: rows(client, sql, values), upgraded["run"], upgraded["rows"]))
        assert by_the_older, "the older sink stored a part"
        assert [count for count in stored if count.published != count.stored] == []
        second = new.start_replay(*REPLAY)
        again = json.loads(second.communicate(timeout=WAIT_S)[0])
        new.wait_stored()
        assert findings(new, again["run"]) == []
        assert upgraded["rows"] == again["rows"]
        values = f"SELECT run, arraySort(groupUniqArray({FIELD})) AS v FROM steps GROUP BY run"
        by_run = {row["run"]: row["v"] for row in new.query(values)}
        assert by_run == {upgraded["run"]: [FILL, BEFORE], again["run"]: [FILL]}
        for topic in RESULTS:
            results, undisturbed = (
                result_rows(client, new.settings.clickhouse.database, topic, run["run"]) for run in (upgraded, again)
            )
            assert undisturbed
            assert results == undisturbed, topic
        assert new.programs["sink"].exits == new.programs["stream"].exits == []
    finally:
        if replay is not None:
            replay.kill()
        for program in (*old.programs.values(), *new.programs.values()):
            program.stop()
