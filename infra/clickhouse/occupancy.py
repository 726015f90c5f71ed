"""Theoretical occupancy of a kernel from its launch, as SQL.

active warps / warps an SM can hold, by the limit that is hit first: warps, blocks, registers, shared memory. Formula
and units as in CUDA's occupancy calculator (cuda_occupancy.h); limits from the CUDA C++ Programming Guide, "Compute
Capabilities", table "Technical Specifications per Compute Capability". Registers are allocated per warp in units of
256, to each of an SM's four partitions by itself; shared memory in units of 128 bytes, and since 8.0 the driver takes
1 KiB a block. Clusters and the carve-out of L1 are left out: it is an upper bound.

What CUDA states of the device counts first (versions['sm'] of a process); the table is for recordings without it.
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


def sm_sql(model: str, described: str) -> str:
    """Return SQL for (warps, blocks, shared, reserved, count) of a GPU; zeros for an unknown one.

    `described`: SQL of what CUDA states of it, "" without; `model`: SQL of its name, for the table.
    """
    fields = ("threads", "blocks", "shared", "reserved", "sms")
    limits = [f"toUInt32OrZero(extract({described}, '{name}=([0-9]+)'))" for name in fields]
    limits[0] = f"intDiv({limits[0]}, {WARP})"
    pairs = ", ".join(
        f"position({model}, '{name}') > 0, ({sm.warps}, {sm.blocks}, {sm.shared}, {sm.reserved}, {sm.count})"
        for name, sm in MODELS.items()
    )
    return f"multiIf({limits[0]} > 0, ({', '.join(limits)}), {pairs}, (0, 0, 0, 0, 0))"


def sm_of_job(where: str) -> str:
    """Return SQL of the SM of the GPUs of a job, as a constant. `where`: chooses its processes."""
    return f"""(
SELECT {sm_sql("model", "described")} FROM (
    SELECT any(gpu_model) AS model, anyIf(versions['sm'], versions['sm'] != '') AS described FROM processes
    WHERE {where} AND gpu_model != ''
)
)"""


#: Columns of a SELECT from kernels_per_minute AS r, and the expressions of them that `with_occupancy` takes: threads of
#: the p95 launch, registers, shared memory.
SHAPE = """quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.threads_per_block) AS t,
    toUInt32(max(r.registers)) AS registers, toUInt32(max(r.shared_bytes)) AS shared_bytes"""
SHAPED = ("t[2]", "registers", "shared_bytes")


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


#: Named query `occupancy`: docs/generate/occupancy_query.py writes it, as files of SQL have no includes.
_SCOPE = "job = {job:String} AND ({run:String} = '' OR run = {run:String})"
_MINUTES = "minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}"
_KERNELS = f"""
SELECT name, sum(r.launches) AS launches, sum(r.gpu_ns) AS gpu_ns,
    quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.blocks) AS g, {SHAPE}
FROM kernels_per_minute AS r WHERE {_SCOPE} AND {_MINUTES} GROUP BY name ORDER BY gpu_ns DESC LIMIT {{limit:UInt32}}
"""


def achieved(column: str, where: str) -> str:
    """Return SQL of the mean of a reading of GPM over a job's GPUs, as a constant; NULL where there is none."""
    return f"(SELECT round(avgMerge(d.{column}), 1) FROM devices_per_minute AS d WHERE {where})"


def named_query() -> str:
    """Return the file of the named query."""
    where = f"{_SCOPE} AND {_MINUTES}"
    return f"""-- How many warps of a kernel fit on an SM, and how full were the SMs?
-- theme: Kernels
-- try: --job demo --limit 8
-- `occupancy`: percent of the warps that an SM holds, at the most; NULL for a GPU that is not known. `limited_by`: why.
-- `waves`: blocks of the p95 launch / blocks that the GPU holds; below 1 it is not filled.
-- `sm_active`, `sm_occupancy`: what the job's GPUs achieved over all kernels, percent by GPM; NULL before Hopper.
SELECT n.short AS kernel, launches, round(gpu_ns / 1e9, 3) AS gpu_s, round(t[2]) AS threads, registers,
    round(shared_bytes / 1024, 1) AS shared_kib, round(100 * k.occupancy, 1) AS occupancy, limited_by,
    if(sms * resident = 0, NULL, round(g[2] / (sms * resident), 2)) AS waves,
    {achieved("sm_active", where)} AS sm_active,
    {achieved("sm_occupancy", where)} AS sm_occupancy
FROM ({with_occupancy(_KERNELS, sm_of_job(_SCOPE), *SHAPED)}) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY gpu_ns DESC
"""
