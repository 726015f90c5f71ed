"""Sizes of launches in SQL: records may hold any number of 32 bits, and no product of them wraps."""

import pytest
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse

pytestmark = pytest.mark.stack
LOW, HIGH = -(1 << 31), (1 << 31) - 1
#: Grid and block of a launch -> blocks, threads a block.
SHAPES = {
    ((4, 3, 2), (128, 2, 1)): (24, 256),
    ((-1, 3, 2), (128, -2, 1)): (0, 0),
    ((-1, -1, 2), (LOW, LOW, 1)): (0, 0),
    ((HIGH, HIGH, HIGH), (HIGH, HIGH, HIGH)): (HIGH * 65_535**2, HIGH * 65_535**2),
}


def test_blocks_and_threads_of_a_launch_never_wrap(stack):
    settings = stack.model_copy(
        update={"clickhouse": stack.clickhouse.model_copy(update={"database": "gpu_kernel_shapes"})}
    )
    migrated_database.create(settings)
    client = clickhouse.connect(settings, database="gpu_kernel_shapes")
    for number, (grid, block) in enumerate(SHAPES):
        sizes = ", ".join(map(str, (*grid, *block)))
        client.command(
            "INSERT INTO kernels (job, name, start, rank, grid_x, grid_y, grid_z, block_x, block_y, block_z) "
            f"VALUES ('shapes', 'k{number}', now64(9), {number}, {sizes})"
        )
    answer = clickhouse.rows(client, "SELECT blocks, threads_per_block FROM kernels ORDER BY rank")
    assert [tuple(row.values()) for row in answer] == list(SHAPES.values())
    rollup = clickhouse.rows(
        client,
        "SELECT quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks)[1] AS q FROM kernels_per_minute GROUP BY rank "
        "ORDER BY rank",
    )
    assert [float(row["q"]) for row in rollup] == pytest.approx([blocks for blocks, _ in SHAPES.values()], rel=0.02)
