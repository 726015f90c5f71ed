"""Small operation tables, as ByteDance-Seed's StragglerAnalysis publishes them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("step", "rank", "stage", "dp_rank", "optype", "start_ts", "duration")


def step_rows(step, late_s=0.0, ranks=((0, 0, 0), (4, 0, 1), (8, 1, 0), (12, 1, 1))):
    """Rows of a step with two stages, two replicas and one batch a replica; the rank recorded as 0 is late.

    Forward passes take 1 s, backward passes 2 s, transfers 0.1 s. The last stage begins to wait for its gradients 0.5 s
    after its last operation.
    """
    rows = []
    for rank, stage, replica in ranks:
        late = late_s if replica == 0 else 0.0

        def add(name, start, end, at=(rank, stage, replica)):
            rows.append((step, *at, name, start, end - start))

        if stage == 0:
            add("params-all-gather", 0.0, 0.2)
            add("forward-compute", 0.2, 1.2 + late)
            add("forward-send", 1.2 + late, 1.3 + late)
            add("backward-recv", 1.3 + late, 4.4 + late)
            add("backward-compute", 4.4 + late, 6.4 + late)
            add("grads-reduce-scatter", 6.4 + late, 6.5 + late_s)
        else:
            add("params-all-gather", 0.0, 0.2)
            add("forward-recv", 0.2, 1.3 + late)
            add("forward-compute", 1.3 + late, 2.3 + late)
            add("backward-compute", 2.3 + late, 4.3 + late)
            add("gc", 4.3 + late, 4.3 + late)
            add("backward-send", 4.3 + late, 4.4 + late)
            add("grads-reduce-scatter", 4.9 + late, 5.0 + late_s)
        add("optimizer", 6.5 + late_s, 6.6 + late_s)
    return rows


def write_table(folder, rows, layout="dp_size: 2\npp_size: 2\ntp_size: 4\n", **columns):
    """Write a table and its layout, and return its path. `columns`: arrays in place of those of the rows."""
    path = folder / "trace-job.parquet"
    values = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)) | columns
    pq.write_table(pa.table({name: column for name, column in values.items() if column is not None}), path)
    (folder / "meta-job.yaml").write_text(layout)
    return path
