"""Simulated jobs as the light tier sees them."""

from __future__ import annotations

from dataclasses import replace

from support.straggler_simulator import batches

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.analysis.light_overlap import is_hidden
from drumline.streams.stragglers.stage import JobStage


def light(recording):
    """The recording without what NCCL does not show: all communication is exposed, what is not idle is queued."""
    spent = {}
    for rank, _, step, _, _, _, start, took in recording.collectives:
        spent.setdefault((rank, step), []).append((start, start + took))
    steps = {}
    for rank, rows in recording.steps.items():
        steps[rank] = [_light(row, spent.get((rank, row["step"]), [])) for row in rows]
    return replace(recording, steps=steps)


def _light(row, spans):
    comm = sum(end - start for start, end in spans)
    idle = row["idle_ns"] + row["copy_ns"]
    known = {"comm_exposed_ns": comm, "idle_ns": idle, "compute_ns": row["gpu_duration_ns"] - comm - idle}
    return {**row, **known, **dict.fromkeys(("copy_ns", "compute_overlapped_ns", "kernels", "blocks"), 0)}


def light_batches(recording, ranks=None, **options):
    """(time, batch) of a job whose `ranks` (None = all) are light."""
    return [
        (at, Batch(batch.topic, {**batch.envelope, "source": "nccl"}, batch.columns))
        if ranks is None or batch.envelope["rank"] in ranks
        else (at, batch)
        for at, batch in batches(recording, **options)
    ]


def hidden_windows(recording, window_steps=5):
    """For each communicator and window: whether its waits are hidden, the share that gaps took up, and the spreads."""
    config = StragglerConfig(window_steps=window_steps)
    jobs = JobStage({}, config)
    stages = [((Topic.COLLECTIVE,), CommunicatorStage({}, config)), ((Topic.LATENESS, Topic.STEP), jobs)]
    list(results(light_batches(recording), stages, config.idle_ns))
    windows = [head["hidden"].values() for head in jobs.states["3:job|run"].published.values()]
    out = []
    for sums in (sums for window in windows for sums in window):
        part, change, squares = sums
        out.append((is_hidden(sums, config), part / max(change, 1.0), part / max(squares, 1.0) ** 0.5))
    return out
