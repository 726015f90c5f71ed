"""kill -9 in the middle of a replay: nothing lost, nothing doubled, and the same results as an undisturbed run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pipeline import RESULTS, Pipeline

from drumline.infra.settings import RetentionSettings, Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

#: Paced, so that there is a middle: the recording's 17 s in about 4 s. Recorded time, so that windows fall alike.
REPLAY = ("--speed", "4", "--keep-time", "--job", "kills")


def test_killed_sink_engine_and_worker_change_nothing(
    clean_stack: Settings,
    environment_of: Callable[[Settings], dict[str, str]],
    kill9: Callable[[str], int],
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    for table in RetentionSettings.model_fields:  # recorded time grows old
        pipeline.environment[f"DRUMLINE_CLICKHOUSE__RETENTION__{table.upper()}"] = "0"
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")

    def replayed(disturb: Callable[[], object]) -> str:
        replay = pipeline.start_replay(*REPLAY)
        time.sleep(2.5)
        assert replay.poll() is None, "the replay was over before anything could be killed"
        disturb()
        out, _ = replay.communicate(timeout=60)
        assert replay.returncode == 0
        run = json.loads(out)["run"]
        pipeline.wait_stored()
        return str(run)

    with pipeline.running():
        calm = pipeline.results(replayed(lambda: None))
        assert all(calm[table] for table in RESULTS)
        for name, kill in {
            "sink": lambda: pipeline.kill("sink"),
            "engine": lambda: kill9("engine"),
            "worker": lambda: pipeline.kill("stream"),
        }.items():
            run = replayed(kill)
            report = pipeline.audit(run)
            assert report["clean"], (name, report["findings"])
            disturbed = pipeline.results(run)
            for table in RESULTS:
                assert disturbed[table] == calm[table], f"{table} after the kill of the {name}"
