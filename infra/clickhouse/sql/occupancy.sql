-- How many warps of a kernel fit on an SM, and how full were the SMs?
-- theme: Kernels
-- try: --job demo --limit 8
-- chart: occupancy by kernel
-- `occupancy`: percent of the warps that an SM holds, at the most; NULL for a GPU that is not known. `limited_by`: why.
-- `waves`: blocks of the p95 launch / blocks that the GPU holds; below 1 it is not filled.
-- `sm_active`, `sm_occupancy`: what the job's GPUs achieved over all kernels, percent by GPM; NULL before Hopper.
SELECT n.short AS kernel, launches, round(gpu_ns / 1e9, 3) AS gpu_s, round(t[2]) AS threads, registers,
    round(shared_bytes / 1024, 1) AS shared_kib, round(100 * k.occupancy, 1) AS occupancy, limited_by,
    if(sms * resident = 0, NULL, round(g[2] / (sms * resident), 2)) AS waves,
    (SELECT round(avgMerge(d.sm_active), 1) FROM devices_per_minute AS d WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}) AS sm_active,
    (SELECT round(avgMerge(d.sm_occupancy), 1) FROM devices_per_minute AS d WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')}) AS sm_occupancy
FROM (
    SELECT *, if(sm.1 = 0, NULL, resident * warps / sm.1) AS occupancy,
        multiIf(sm.1 = 0, '', resident = by_warps, 'warps', resident = by_registers, 'registers',
            resident = by_shared, 'shared memory', 'blocks') AS limited_by
    FROM (
        SELECT *, least(by_warps, sm.2, by_registers, by_shared) AS resident FROM (
            SELECT *, intDiv(sm.1, warps) AS by_warps,
                if(by_warp = 0, sm.2, intDiv(intDiv(16384, greatest(by_warp, 1)) * 4,
                    warps)) AS by_registers,
                if(by_block = 0, sm.2, intDiv(sm.3, greatest(by_block, 1))) AS by_shared, sm.5 AS sms
            FROM (
                SELECT *, greatest(toUInt32(ceil(t[2] * 0.985 / 32)), 1) AS warps,
                    intDiv(registers * 32 + 255, 256) * 256 AS by_warp,
                    intDiv(shared_bytes + sm.4 + 127, 128) * 128 AS by_block
                FROM (SELECT *, (
SELECT multiIf(intDiv(toUInt32OrZero(extract(described, 'threads=([0-9]+)')), 32) > 0, (intDiv(toUInt32OrZero(extract(described, 'threads=([0-9]+)')), 32), toUInt32OrZero(extract(described, 'blocks=([0-9]+)')), toUInt32OrZero(extract(described, 'shared=([0-9]+)')), toUInt32OrZero(extract(described, 'reserved=([0-9]+)')), toUInt32OrZero(extract(described, 'sms=([0-9]+)'))), position(model, 'B200') > 0, (64, 32, 233472, 1024, 148), position(model, 'GH200') > 0, (64, 32, 233472, 1024, 132), position(model, 'H200') > 0, (64, 32, 233472, 1024, 132), position(model, 'H100') > 0, (64, 32, 233472, 1024, 132), position(model, 'L40') > 0, (48, 24, 102400, 1024, 142), position(model, 'L4') > 0, (48, 24, 102400, 1024, 58), position(model, 'A100') > 0, (64, 32, 167936, 1024, 108), position(model, 'A30') > 0, (64, 32, 167936, 1024, 56), position(model, 'A10') > 0, (48, 16, 102400, 1024, 72), position(model, 'T4') > 0, (32, 16, 65536, 0, 40), position(model, 'V100') > 0, (64, 32, 98304, 0, 80), (0, 0, 0, 0, 0)) FROM (
    SELECT any(gpu_model) AS model, anyIf(versions['sm'], versions['sm'] != '') AS described FROM processes
    WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND gpu_model != ''
)
) AS sm FROM (
SELECT name, sum(r.launches) AS launches, sum(r.gpu_ns) AS gpu_ns,
    quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.blocks) AS g, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(r.threads_per_block) AS t,
    toUInt32(max(r.registers)) AS registers, toUInt32(max(r.shared_bytes)) AS shared_bytes
FROM kernels_per_minute AS r WHERE job = {job:String} AND ({run:String} = '' OR run = {run:String}) AND minute >= {since:DateTime64(3, 'UTC')} AND minute < {until:DateTime64(3, 'UTC')} GROUP BY name ORDER BY gpu_ns DESC LIMIT {limit:UInt32}
))
            )
        )
    )
    ) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name
ORDER BY gpu_ns DESC
