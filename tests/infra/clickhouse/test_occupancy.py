"""Theoretical occupancy in SQL, against its formula in Python."""

import pytest

from drumline.infra.clickhouse.occupancy import (
    MODELS,
    PARTITIONS,
    REGISTERS,
    WARP,
    named_query,
    sm_sql,
    with_occupancy,
)
from drumline.infra.clickhouse.queries import queries
from drumline.infra.localstack.clickhouse.engine import query


def blocks_per_sm(sm, threads, registers, shared):
    """The blocks that each resource lets an SM hold.

    `threads`, `registers` (per thread) and `shared` (bytes) are those of a block.
    """
    warps = max(-(-threads // WARP), 1)
    per_warp = -(-registers * WARP // 256) * 256
    by_registers = REGISTERS // PARTITIONS // per_warp * PARTITIONS // warps if per_warp else sm.blocks
    taken = -(-(shared + sm.reserved) // 128) * 128
    return {
        "warps": sm.warps // warps,
        "blocks": sm.blocks,
        "registers": by_registers,
        "shared memory": sm.shared // taken if taken else sm.blocks,
    }


def occupancy(sm, threads, registers, shared):
    """The theoretical occupancy, 0..1."""
    warps = max(-(-threads // WARP), 1)
    return min(blocks_per_sm(sm, threads, registers, shared).values()) * warps / sm.warps


@pytest.mark.parametrize(
    ("model", "threads", "registers", "shared", "expected"),
    [
        ("H200", 256, 32, 0, 1.0),  # all limits at 64 warps
        ("H200", 128, 255, 0, 0.125),  # 8,192 registers a warp: two warps in each partition
        ("H200", 384, 168, 213_188, 0.1875),  # one block of 12 warps, by shared memory and registers
        ("A100", 1_024, 64, 0, 0.5),  # 32 warps of 2,048 registers
        ("A100", 32, 16, 0, 0.5),  # 32 blocks of one warp
        ("L40", 1_024, 32, 0, 2 / 3),  # one block of 32 of 48 warps
        ("T4", 256, 32, 32_768, 0.5),  # 64 KiB hold two blocks
    ],
)
def test_occupancy_by_the_limit_that_is_hit_first(model, threads, registers, shared, expected):
    assert occupancy(MODELS[model], threads, registers, shared) == pytest.approx(expected)


@pytest.mark.stack
def test_occupancy_in_sql_is_the_same(stack):
    launches = [(t, r, s) for t in (32, 96, 256, 1_024) for r in (0, 24, 64, 168, 255) for s in (0, 1, 30_000, 98_000)]
    for model, sm in MODELS.items():
        rows = f"SELECT arrayJoin({launches}) AS launch, launch.1 AS t, launch.2 AS r, launch.3 AS s"
        rows_sql = with_occupancy(rows, sm_sql(f"'NVIDIA {model} 80GB'", "''"), "t", "r", "s")
        answer = query(stack, f"SELECT t, r, s, resident, occupancy, sms FROM ({rows_sql}) FORMAT TSV", "analyst")
        computed = [[float(cell) for cell in line.split("\t")[3:]] for line in answer.splitlines()]
        assert computed == [
            [min(blocks_per_sm(sm, *launch).values()), pytest.approx(occupancy(sm, *launch)), sm.count]
            for launch in launches
        ], model
    unknown = sm_sql("'GTX 1080'", "''")
    assert query(stack, f"SELECT {unknown}", "analyst") == "(0,0,0,0,0)"


@pytest.mark.stack
def test_a_gpu_newer_than_the_table_is_computed_from_what_cuda_states_of_it(stack):
    text = "sms=160 threads=1536 blocks=24 registers=65536 shared=131072 reserved=2048"
    for model in ("'NVIDIA R300'", "'NVIDIA H200'"):
        assert query(stack, f"SELECT {sm_sql(model, repr(text))}", "analyst") == "(48,24,131072,2048,160)"


def test_the_named_query_is_made_of_the_same_sql():
    assert queries()["occupancy"].sql.strip() == named_query().partition("\nSELECT")[2].strip().join(["SELECT ", ""]), (
        "run `make docs`"
    )
