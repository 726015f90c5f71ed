"""Rows of simulated jobs, as the curve reads those of recordings."""

from support.straggler_simulator import batches, ddp, simulate

from drumline.lab.evaluate.curve.job_rows import job_rows
from drumline.lab.evaluate.curve.timings import runs_of_steps
from drumline.schemas.columns import filled
from drumline.schemas.model import model


def rows_of(recording):
    """Return the rows; columns that the simulator does not know have their fill values."""
    out = []
    for _, batch in batches(recording):
        columns = {c.name: batch.columns.get(c.name, filled(c, batch.rows)) for c in model(batch.topic).columns}
        if "gpu_start_ns" in columns:
            columns["gpu_start_ns"] = columns["start_ns"]
        batch.columns = columns
        out.append(batch)
    return job_rows(out)


def healthy_rows(ranks=2, steps=60, noise=0.003, layout=ddp):
    return rows_of(simulate(layout(ranks), steps, noise=noise))


def healthy_runs(rows, steps=60):
    return runs_of_steps(rows, [(0, steps - 1)])
