"""Simulated windows of steps and their verdicts."""

from __future__ import annotations

from dataclasses import replace

from support.straggler_simulator import ddp, fsdp, mesh

from drumline.streams.core.thresholds import WARNING, StragglerConfig
from drumline.streams.offline import latest, verdicts

LAYOUTS = {
    "ddp4": ddp(4),
    "ddp8": ddp(8),
    "fsdp4": fsdp(4),
    "mesh2x2": mesh(2, 2),
    "mesh2x2-no-world": mesh(2, 2, world=False),
    "mesh4x2": mesh(4, 2),
    "mesh2x2x2": mesh(2, 2, 2),
}


CAUSES = {"idle": "host_stall", "copy": "slow_copy", "compute": "slow_compute", "work": "slow_compute"}


CONFIG = StragglerConfig(window_steps=12)
#: Windows have as many steps, however long those take.
ANY_LENGTH = replace(CONFIG, window_ns=1 << 62)


Verdicts = dict[int, dict[int, tuple[int, str, float]]]


def evaluated(stream, config=CONFIG) -> Verdicts:
    """Return first step -> rank -> (severity, cause, share)."""
    out: Verdicts = {}
    for (*_, first), batch in sorted(latest(verdicts(stream, config)).items()):
        c, causes = batch.columns, batch.strings("cause", "causes")
        out[first] = {
            int(c["rank"][i]): (int(c["severity"][i]), str(causes[i]), float(c["lost_share"][i]))
            for i in range(batch.rows)
        }
    return out


def named_ranks(result: Verdicts) -> list[dict[int, str]]:
    """Return for each window rank -> cause of the ranks named at warning or above."""
    return [
        {rank: cause for rank, (severity, cause, _) in rows.items() if severity >= WARNING} for rows in result.values()
    ]
