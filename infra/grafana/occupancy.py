"""Theoretical occupancy of a kernel from its launch, as SQL and in Python.

active warps / warps an SM can hold, by the limit that is hit first: warps, blocks, registers, shared memory. Formula
and units as in CUDA's occupancy calculator (cuda_occupancy.h); limits from the CUDA C++ Programming Guide, "Compute
Capabilities", table "Technical Specifications per Compute Capability". Registers are handed out per warp in units of
256, to each of an SM's four partitions by itself; shared memory in units of 128 bytes, and since 8.0 the driver takes
1 KiB a block. Clusters and the carve-out of L1 are left out: it is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS, PARTITIONS, WARP = 65_536, 4, 32


@dataclass(frozen=True, slots=True)
class Sm:
    """One streaming multiprocessor. `shared`: bytes; `reserved`: of them per block by the driver."""

    warps: int
    blocks: int
    shared: int
    reserved: int
    count: int


#: Part of the model name that NVML tells -> its SM. The first that is found; `count`: SMs of the whole GPU, SXM where
#: variants differ (vendor data sheets).
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
    """Blocks that each resource lets an SM hold. `threads`, `registers` (per thread), `shared` (bytes): of a block."""
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
    """0..1."""
    warps = max(-(-threads // WARP), 1)
    return min(blocks_per_sm(sm, threads, registers, shared).values()) * warps / sm.warps


def _of_model(model: str, field: str) -> str:
    pairs = ", ".join(f"position({model}, '{name}') > 0, {getattr(sm, field)}" for name, sm in MODELS.items())
    return f"multiIf({pairs}, 0)"


def columns_sql(model: str, threads: str, registers: str, shared: str) -> str:
    """Columns of a SELECT: `occupancy` (0..1; NULL for a GPU that is not in MODELS), `limited_by`, `sms`. `threads` may
    be 1% off, as quantiles of the rollup are: 514 threads are 512, not 17 warps."""
    return f"""
    {_of_model(model, "warps")} AS sm_warps, {_of_model(model, "blocks")} AS sm_blocks,
    {_of_model(model, "shared")} AS sm_shared, {_of_model(model, "reserved")} AS sm_reserved,
    {_of_model(model, "count")} AS sms,
    greatest(toUInt32(ceil({threads} * 0.985 / 32)), 1) AS warps,
    intDiv({registers} * 32 + 255, 256) * 256 AS warp_registers,
    intDiv({shared} + sm_reserved + 127, 128) * 128 AS block_shared,
    intDiv(sm_warps, warps) AS by_warps,
    if(warp_registers = 0, sm_blocks, intDiv(intDiv(16384, greatest(warp_registers, 1)) * 4, warps)) AS by_registers,
    if(block_shared = 0, sm_blocks, intDiv(sm_shared, greatest(block_shared, 1))) AS by_shared,
    least(by_warps, sm_blocks, by_registers, by_shared) AS resident,
    if(sm_warps = 0, NULL, resident * warps / sm_warps) AS occupancy,
    multiIf(sm_warps = 0, '', resident = by_warps, 'warps', resident = by_registers, 'registers',
        resident = by_shared, 'shared memory', 'blocks') AS limited_by
    """
