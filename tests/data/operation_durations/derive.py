"""Derive durations.csv from ByteDance-Seed's tables: derive.py FOLDER_WITH_THE_TABLES. A row per series, in us."""

import sys
from pathlib import Path

import numpy as np

from drumline.producers.replay.operation_table.table_reader import read_table

#: Durations kept of each series, at equal distances of rank and step.
KEPT = 400
#: (stage, dp_rank) of the rank that was slowed down in AR.
SLOWED = (0, 0)

lines = ["table,stage,operation,durations_us"]
for name in ("AR", "SE", "ST"):
    table = read_table(Path(sys.argv[1]) / f"trace-{name}.parquet")
    is_slow = (table["stage"] == SLOWED[0]) & (table["dp_rank"] == SLOWED[1]) & (name == "AR")
    for stage in range(table.sizes["pp_size"]):
        for operation in ("forward-compute", "backward-compute"):
            rows = np.flatnonzero((table["stage"] == stage) & table.of_type(operation) & ~is_slow)
            rows = rows[np.linspace(0, len(rows) - 1, KEPT).astype(np.int64)]
            values = np.rint(table["duration"][rows] * 1e6).astype(np.int64)
            lines.append(f"{name},{stage},{operation.removesuffix('-compute')},{' '.join(map(str, values.tolist()))}")
(Path(__file__).parent / "durations.csv").write_text("\n".join(lines) + "\n")
