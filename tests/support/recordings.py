"""Recorded jobs for tests: those in the repo, and those in the folders that DRUMLINE_TRACES names (as PATH does)."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path

import pytest

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.lab.evaluate.scoring import evaluate_phases
from drumline.producers.derive.rows import derive
from drumline.producers.replay import recording as recorded
from drumline.producers.replay.trace import read_trace
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import latest, verdicts
from drumline.views.verdict.verdict_rows import VerdictRow

TOPICS = {Topic.COLLECTIVE, Topic.STEP}


DAY_NS = 86_400_000_000_000
#: Data parallel, and in stages: where a test runs over many recordings, the others are for the long tests.
SHORT = (DEMO_RECORDING.name, "pipeline")


def folders():
    """Every folder of a recorded job: name -> path. The repo's come first."""
    named = [Path(p) for p in os.environ.get("DRUMLINE_TRACES", "").split(os.pathsep) if p]
    paths = {DEMO_RECORDING.name: DEMO_RECORDING}
    for root in (Path(__file__).parents[1] / "data" / "traces", *named):
        for path in sorted(root.glob("*/manifest.json")):
            paths.setdefault(path.parent.name, path.parent)
    return paths


def folder(name):
    """The folder of a recorded job; skips the test where it is not to be had."""
    if name not in folders():
        pytest.skip(f"recording {name} is not in the repository; DRUMLINE_TRACES=DIR names a folder that has it")
    return folders()[name]


def to_present_ns(last_ns, now_ns=None):
    """Time that moves a recording which ends at `last_ns` to the present: an engine keeps its rows whatever the day.

    Whole days, so that minutes, hours and midnights lie where they were; it ends one to two days before now.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    return (now_ns - last_ns) // DAY_NS * DAY_NS - DAY_NS


def other_recordings():
    """Folders of recorded jobs of several ranks with phases, the demo's job left out."""
    return [path for path in folders().values() if path != DEMO_RECORDING and phases(path) and _ranks(path) > 1]


def jobs_to_damage():
    """Parameters for tests that damage every recorded job: those of other kinds of parallelism are long."""
    return [
        pytest.param(path, id=path.name, marks=[pytest.mark.traces] + [pytest.mark.long] * (path.name not in SHORT))
        for path in (DEMO_RECORDING, *other_recordings())
    ]


def phases(folder):
    return json.loads((folder / "manifest.json").read_text()).get("phases") or []


def _ranks(folder):
    return len(json.loads((folder / "manifest.json").read_text()).get("ranks") or [])


@cache
def trace(folder):
    """Return the recorded trace, before derivation."""
    return read_trace(folder, topics=TOPICS)


def stream(folder, changed=None):
    """(time, batch) of collectives and steps; `changed`: a trace to take instead of the recorded one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "read_trace", lambda *_: changed or trace(folder))
        batches = recorded.RecordedJob(folder, topics=TOPICS).batches("run")
    return [(out.time_ns, out.batch) for out in batches]


def rows(batches, window_steps=5):
    """Verdicts on ranks: (first step, rank) -> VerdictRow; the job as a whole is rank -1."""
    out = {}
    for _, batch in sorted(latest(verdicts(batches, StragglerConfig(window_steps=window_steps))).items()):
        c, first, last = batch.columns, int(batch.envelope["first_step"]), int(batch.envelope["last_step"])
        causes, details = batch.strings("cause", "causes"), batch.strings("detail", "details")
        for i, rank in enumerate(c["rank"].tolist()):
            severity, share = int(c["severity"][i]), float(c["lost_share"][i])
            out[first, rank] = VerdictRow(first, last, rank, severity, causes[i], details[i], share)
    return out


def report(folder, verdict_rows, changed=None):
    """`changed`: the trace whose steps number otherwise than the manifest's, if they do."""
    return evaluate_phases(phases(folder) if changed is None else renumbered(folder, changed), verdict_rows.values())


def renumbered(folder, changed):
    """The manifest's phases by the steps of a trace, by rank 0's clock: those that lie wholly inside."""
    steps = derive(changed.activities[0]).steps
    start, end = steps["start_ns"], steps["start_ns"] + steps["duration_ns"]
    out = []
    for phase in phases(folder):
        inside = steps["step"][(start >= phase["start_ns"]) & (end <= phase["end_ns"])]
        bounds = {"first_step": int(inside[0]), "last_step": int(inside[-1])} if len(inside) else {"last_step": -1}
        out.append({**phase, **bounds})
    return out
