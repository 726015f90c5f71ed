"""Theoretical occupancy of a kernel from its launch, as SQL and in Python.

active warps / warps an SM can hold, by the limit that is hit first: warps, blocks, registers, shared memory. Formula
and units as in CUDA's occupancy calculator (cuda_occupancy.h); limits from the CUDA C++ Programming Guide, "Compute
Capabilities", table "Technical Specifications per Compute Capability". Registers are allocated per warp in units of
256, to each of an SM's four partitions by itself; shared memory in units of 128 bytes, and since 8.0 the driver takes
1 KiB a block. Clusters and the carve-out of L1 are left out: it is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS, PARTITIONS, WARP = 65_536, 4, 32


@dataclass(frozen=True, slots=True)
class Sm:
    """Describes a streaming multiprocessor. `shared`: bytes, of which the driver takes `reserved` per block."""

    warps: int
    blocks: int
    shared: int
    reserved: int
    count: int


#: Part of the model name in NVML -> its SM; the first match counts. `count`: SMs of the whole GPU, SXM where variants
#: differ (vendor data sheets).
MODELS: dict[str, Sm] = {
    "B200": Sm(64, 32, 233_472, 1_024, 148),
    "GH200": Sm(64, 32, 233_472, 1_024, 132),
    "H200": Sm(64, 32, 233_472, 1_024, 132),
    "H100": Sm(64, 32, 233_472, 1_024, 132),
    "L40": Sm(48, 24, 102_400, 1_024, 142),
    "L4": Sm(48, 24, 102_400, 1_024, 58),
    "A100": Sm(64, 32, 167_936, 1_024, 108),
    "A30": Sm(64, 32, 167_936, 1_024, 56),
    "A10": Sm(48, 16, 102_400, 1_024, 72),
    "T4": Sm(32, 16, 65_536, 0, 40),
    "V100": Sm(64, 32, 98_304, 0, 80),
}


def blocks_per_sm(sm: Sm, threads: int, registers: int, shared: int) -> dict[str, int]:
    """Return the blocks that each resource lets an SM hold.

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


def occupancy(sm: Sm, threads: int, registers: int, shared: int) -> float:
    """Return the theoretical occupancy, 0..1."""
    warps = max(-(-threads // WARP), 1)
    return min(blocks_per_sm(sm, threads, registers, shared).values()) * warps / sm.warps


def sm_sql(model: str) -> str:
    """Return SQL for a GPU model's (warps, blocks, shared, reserved, count); zeros for unknown models."""
    pairs = ", ".join(
        f"position({model}, '{name}') > 0, ({sm.warps}, {sm.blocks}, {sm.shared}, {sm.reserved}, {sm.count})"
        for name, sm in MODELS.items()
    )
    return f"multiIf({pairs}, (0, 0, 0, 0, 0))"


def with_occupancy(rows: str, sm: str, threads: str, registers: str, shared: str) -> str:
    """Return the rows of a SELECT with `occupancy` (0..1; NULL for an unknown GPU), `limited_by`, `resident` and `sms`.

    `resident` is the number of blocks that an SM holds. `sm` is the result of `sm_sql`, a constant. `threads` may be 1%
    off, as quantiles of the rollup are: 514 threads are 512, not 17 warps. SELECTs are nested because the server is
    slow at names that stand for each other.
    """
    return f"""
    SELECT *, if(sm.1 = 0, NULL, resident * warps / sm.1) AS occupancy,
        multiIf(sm.1 = 0, '', resident = by_warps, 'warps', resident = by_registers, 'registers',
            resident = by_shared, 'shared memory', 'blocks') AS limited_by
    FROM (
        SELECT *, least(by_warps, sm.2, by_registers, by_shared) AS resident FROM (
            SELECT *, intDiv(sm.1, warps) AS by_warps,
                if(by_warp = 0, sm.2, intDiv(intDiv({REGISTERS // PARTITIONS}, greatest(by_warp, 1)) * {PARTITIONS},
                    warps)) AS by_registers,
                if(by_block = 0, sm.2, intDiv(sm.3, greatest(by_block, 1))) AS by_shared, sm.5 AS sms
            FROM (
                SELECT *, greatest(toUInt32(ceil({threads} * 0.985 / {WARP})), 1) AS warps,
                    intDiv({registers} * {WARP} + 255, 256) * 256 AS by_warp,
                    intDiv({shared} + sm.4 + 127, 128) * 128 AS by_block
                FROM (SELECT *, {sm} AS sm FROM ({rows}))
            )
        )
    )
    """
