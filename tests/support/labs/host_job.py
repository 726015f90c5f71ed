"""A job on several hosts, each with an agent, before a real stack: its phases, and what each window of one names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.labs.host_lab import JOB, RATE, HostLab, host_lab
from support.namespaces import Hosts, hosts
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.processes import ManagedProcess

#: Time at the begin of a phase that belongs to none, s.
SETTLE_S = 2.0
WINDOW_STEPS = 10


class WindowNames(NamedTuple):
    """Holds what a window names: flows of ranks, `direction`, `detail` of the job's row, and suspects of `late`."""

    flows: list[tuple[int, int]]
    direction: str
    late: list[int]
    cause: str = ""
    detail: str = ""
    evidence: Mapping[str, Any] = {}


@dataclass
class HostJob:
    """A running job. `spans`: of each phase, begin and end in ns."""

    pipeline: Pipeline
    hosts: Hosts
    lab: HostLab
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def phase(self, name: str, seconds: float) -> None:
        """Let the job run as it is now."""
        begin = time.time_ns()
        time.sleep(seconds)
        self.spans[name] = begin + round(SETTLE_S * 1e9), time.time_ns()

    def windows(self, name: str) -> list[WindowNames]:
        """Return what each window within a phase names."""
        begin_ns, end_ns = self.spans[name]
        rows = self.pipeline.query(
            f"""SELECT first_step, groupArrayIf(rank, rank >= 0 AND severity >= 'suspect') AS late,
                anyIf(cause, rank < 0) AS cause, anyIf(detail, rank < 0) AS detail,
                anyIf(evidence_json, rank < 0) AS evidence
            FROM stragglers WHERE job = '{JOB}' AND toUnixTimestamp64Nano(window_start) >= {begin_ns}
                AND toUnixTimestamp64Nano(window_end) <= {end_ns} GROUP BY first_step ORDER BY first_step"""
        )
        return [_names(row) for row in rows]

    def hangs(self) -> list[dict[str, Any]]:
        return self.pipeline.query(
            f"SELECT toUnixTimestamp64Nano(time) AS at, note FROM hangs WHERE job = '{JOB}' ORDER BY time"
        )

    def first_hang(self) -> dict[str, Any]:
        """Return the first row of a standstill, once there is one."""
        until = time.monotonic() + WAIT_S
        while not (rows := self.hangs()):
            assert time.monotonic() < until, "no standstill is stated"
            time.sleep(1.0)  # a reader's queries are limited
        return rows[0]


def _names(row: Mapping[str, Any]) -> WindowNames:
    evidence = json.loads(row["evidence"]) if row["cause"] == "slow_link" else {}
    flows = [(flow["from"], flow["to"]) for flow in evidence.get("flows", [])]
    return WindowNames(
        flows, evidence.get("direction", ""), sorted(row["late"]), row["cause"], row["detail"],
        json.loads(row["evidence"] or "{}"),
    )  # fmt: skip


@contextmanager
def host_job(
    stack: Settings,
    environment_of: Callable[[Settings], dict[str, str]],
    folder: Path,
    count: int,
    rate: float = RATE,
    window_steps: int = WINDOW_STEPS,
) -> Iterator[HostJob]:
    """Yield hosts with agents and no job yet: `lab.start_job` starts it. Worker and sink run beside.

    `rate`: bytes a second of a healthy link.
    """
    if os.geteuid():
        pytest.skip("network namespaces need root")
    names = [f"node-{number}" for number in range(count)]
    pipeline = Pipeline(stack, environment_of(stack), folder)
    pipeline.environment |= {"PATH": os.environ["PATH"], "DRUMLINE_STREAM__WINDOW_STEPS": str(window_steps)}
    pipeline.programs["stream"] = ManagedProcess("stream", ["stream"], folder / "stream.log", pipeline.environment)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    ports = [int(stack.bootstrap.rpartition(":")[2])]
    with pipeline.running(), hosts(names) as of, host_lab(of, folder, pipeline.environment, ports, rate) as lab:
        yield HostJob(pipeline, of, lab)
