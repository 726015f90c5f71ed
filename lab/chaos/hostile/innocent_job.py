"""Replays the job that hostile records may not disturb, and measures the delays of its verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import environment
from drumline.lab.chaos.progress import PipelineProgress

JOB = "innocent"
POLL_S, DRAIN_S = 0.3, 600.0
#: Longer than the silence after which the last windows close.
SETTLED_S = 15.0


class InnocentJob:
    """Replays the recording at its own speed, and sees when each of its verdicts can be read.

    process_ids: of all its runs so far.
    """

    def __init__(self, settings: Settings, recording: Path, loops: int) -> None:
        self.settings, self._recording, self._loops = settings, recording, loops
        self.process_ids: list[str] = []
        self.client = clickhouse.connect(settings, database=settings.clickhouse.database)

    def run(
        self, check: Callable[[], object], meanwhile: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[tuple[float, float]]]:
        """Replay until the end and until `meanwhile` returns False; return the summary, and the verdicts' delays.

        A delay is (until it is in ClickHouse, until it is in Kafka).

        Raises RuntimeError where the replay fails or nothing drains.
        """
        options = ["--speed", "1", "--loop", str(self._loops), "--keep-time", "--job", JOB, "--json"]
        seen: dict[tuple[str, int], float] = {}

        def poll() -> None:
            check()
            sql = "SELECT DISTINCT run, first_step FROM stragglers WHERE job = {job:String}"
            for row in clickhouse.rows(self.client, sql, {"job": JOB}):
                seen.setdefault((row["run"], int(row["first_step"])), time.time())
            sql = "SELECT DISTINCT process_id FROM processes WHERE job = {job:String}"
            self.process_ids[:] = [row["process_id"] for row in clickhouse.rows(self.client, sql, {"job": JOB})]

        command = [sys.executable, "-m", "drumline.cli.app", "replay", str(self._recording), *options]
        with subprocess.Popen(command, env=environment(self.settings), stdout=subprocess.PIPE, text=True) as replay:
            try:
                polled, busy = 0.0, True
                while busy or replay.poll() is None:
                    busy = busy and meanwhile()
                    if time.monotonic() - polled > POLL_S:
                        polled = time.monotonic()
                        poll()
                    time.sleep(0.02)
            finally:
                replay.kill()
            output = replay.stdout.read() if replay.stdout else ""
        if replay.returncode:
            raise RuntimeError(f"the replay ended with exit code {replay.returncode}")
        self._wait_settled(poll)
        summary = json.loads(output)
        return summary, self._delays(summary["run"], seen)

    def _wait_settled(self, poll: Callable[[], object]) -> None:
        """Wait until nothing is left to read and nothing new has come for SETTLED_S.

        Windows that hostile records leave open do not count: a communicator of one rank waits an hour for a second.
        """
        deadline = since_s = time.monotonic()
        deadline += DRAIN_S
        before: dict[str, int] = {}
        with closing(PipelineProgress(self.settings)) as progress:
            while time.monotonic() - since_s < SETTLED_S:
                poll()
                seen = progress.poll()
                if seen is None or any(seen.lag.values()) or seen.done != before:
                    since_s, before = time.monotonic(), seen.done if seen else {}
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not all is read within {DRAIN_S:.0f} s: {seen and seen.lag}")
                time.sleep(POLL_S)

    def _delays(self, run: str, seen: dict[tuple[str, int], float]) -> list[tuple[float, float]]:
        """Return seconds from a window's last step in Kafka to its verdict, of windows whose verdict was not late."""
        sql = (
            "SELECT v.first_step AS first_step, toUnixTimestamp64Milli(max(l.published)) / 1e3 AS complete_s, "
            "toUnixTimestamp64Milli(any(v.judged)) / 1e3 AS judged_s FROM "
            "(SELECT first_step, any(last_step) AS last_step, min(published) AS judged FROM stragglers_versions "
            "WHERE job = {job:String} AND run = {run:String} GROUP BY first_step) v "
            "JOIN steps s ON s.step = v.last_step "
            "JOIN ledger l ON s._topic_partition = concat(l.topic_id, ':', toString(l.partition)) "
            "AND s._offset = l.offset "
            "WHERE s.job = {job:String} AND s.run = {run:String} GROUP BY first_step"
        )
        complete = clickhouse.rows(self.client, sql, {"job": JOB, "run": run})
        return [
            (seen[run, int(row["first_step"])] - row["complete_s"], row["judged_s"] - row["complete_s"])
            for row in complete
            if (run, int(row["first_step"])) in seen
        ]
