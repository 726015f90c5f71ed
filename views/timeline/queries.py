"""Queries of the timeline. Times are ns since the epoch, of the clock of the rank's host.

All take `job`, `run`; those of one rank take `rank` and `since`, `until` too: rows that began between them.
"""

from __future__ import annotations

from drumline.infra.clickhouse.coverage import of_attempt

_RUN = "job = {job:String} AND run = {run:String}"
_TIME = "start >= fromUnixTimestamp64Nano({since:Int64}) AND start <= fromUnixTimestamp64Nano({until:Int64})"
_RANK = f"{_RUN} AND rank = {{rank:Int32}} AND {_TIME}"
# Of the newest attempt: step numbers repeat.
_STEPS = f"step BETWEEN {{first:Int64}} AND {{last:Int64}} AND {of_attempt()}"

# Steps of all ranks, with the budget of each.
STEPS = f"""
SELECT rank, host, gpu_uuid, process_id, step, toInt64(toUnixTimestamp64Nano(start)) AS begin, duration_ns AS ns,
       toInt64(toUnixTimestamp64Nano(gpu_start)) AS gpu_begin, gpu_duration_ns AS gpu_ns, compute_ns, copy_ns,
       comm_exposed_ns, idle_ns, kernels, collectives, skipped, source
FROM steps WHERE {_RUN} AND {_STEPS} ORDER BY rank, begin
"""

# The first and last step that the run has.
EXTENT = f"""
SELECT count() AS rows, min(step) AS first, max(step) AS last FROM steps
WHERE {_RUN} AND {of_attempt()} AND step >= 0
"""

# Collectives of these steps on all ranks: what aligns the ranks, and what flows join.
COLLECTIVES = f"""
SELECT rank, communicator, operation, bytes, step, ordinal, toInt64(toUnixTimestamp64Nano(start)) AS begin,
       duration_ns AS ns, covered_ns, source
FROM collectives WHERE {_RUN} AND {_STEPS} ORDER BY rank, communicator, begin
"""

KERNELS = f"""
SELECT stream, if(n.short = '', k.name, n.short) AS short, k.name AS name, n.family AS family,
       toInt64(toUnixTimestamp64Nano(start)) AS begin, toInt64(duration_ns) AS ns, grid_x, grid_y, grid_z, block_x,
       block_y, block_z, registers, shared_static + shared_dynamic AS shared, correlation, graph
FROM kernels AS k LEFT ANY JOIN kernel_names AS n ON n.name = k.name WHERE {_RANK} ORDER BY stream, begin
"""

COPIES = f"""
SELECT stream, direction, source, target, bytes, toInt64(toUnixTimestamp64Nano(start)) AS begin,
       toInt64(duration_ns) AS ns, is_async, correlation, graph
FROM memcpys WHERE {_RANK} ORDER BY stream, begin
"""

RANGES = f"""
SELECT name, domain, toInt64(toUnixTimestamp64Nano(start)) AS begin, duration_ns AS ns, step
FROM ranges WHERE {_RANK} ORDER BY domain, begin, ns DESC, depth
"""

# Rows that the trace would have, before any is read.
COUNTS = f"""
SELECT (SELECT count() FROM kernels WHERE {_RANK}) + (SELECT count() FROM memcpys WHERE {_RANK})
       + (SELECT count() FROM ranges WHERE {_RANK}) AS rows
"""

# Verdicts of windows that have one of the steps: of ranks that were late, and of the job as a whole.
VERDICTS = f"""
SELECT rank, first_step, last_step, s.state AS state, toString(s.severity) AS severity, cause, detail, s.confidence,
       s.lost_ns AS lost_ns, s.lost_share AS lost_share
FROM stragglers AS s
WHERE {_RUN} AND first_step <= {{last:Int64}} AND last_step >= {{first:Int64}}
  AND (s.severity >= 'suspect' OR rank = -1) ORDER BY rank, first_step
"""

_SAMPLED = "time >= fromUnixTimestamp64Nano({since:Int64}) AND time <= fromUnixTimestamp64Nano({until:Int64})"

# Samples of the rank's GPU. Rows of the agent have the rank whose process runs there.
DEVICES = f"""
SELECT toInt64(toUnixTimestamp64Nano(time)) AS at, util_gpu, power_mw, sm_clock, temperature, memory_used, sm_active,
       tensor_active, dram_active, pcie_rx_kbps, pcie_tx_kbps, nvlink_rx_kbps, nvlink_tx_kbps
FROM device_samples WHERE {_RUN} AND rank = {{rank:Int32}} AND {_SAMPLED} ORDER BY time
"""

# Python stacks of samplings that overlap the steps.
STACKS = f"""
SELECT thread, thread_id, is_main, toInt64(toUnixTimestamp64Nano(time)) AS begin, duration_ns AS ns, samples, stack
FROM stacks WHERE {_RUN} AND rank = {{rank:Int32}} AND time <= fromUnixTimestamp64Nano({{until:Int64}})
  AND addNanoseconds(time, duration_ns) >= fromUnixTimestamp64Nano({{since:Int64}})
ORDER BY is_main DESC, thread, thread_id, begin, samples DESC, stack
"""

# Requests of one id, or of one caller's trace; the parameter that is empty is any.
REQUESTS = f"""
SELECT request, traceparent, process_id, rank, host, engine, model, adapter, tenant, route, outcome,
       toInt64(toUnixTimestamp64Nano(start)) AS begin, duration_ns AS ns, queue_ns, ttft_ns, prompt_tokens,
       cached_tokens, output_tokens, iterations, first_iteration, last_iteration, preemptions, gpu_ns, prefill_gpu_ns
FROM requests
WHERE {_RUN} AND ({{request:String}} = '' OR request = {{request:String}})
  AND ({{trace:String}} = '' OR position(traceparent, {{trace:String}}) > 0)
ORDER BY begin, request LIMIT {{most:UInt32}}
"""

# Iterations that began between two times: of engines, and of workers on their hosts.
ITERATIONS = f"""
SELECT rank, host, gpu_uuid, process_id, engine, role, iteration, phase, toInt64(toUnixTimestamp64Nano(start)) AS begin,
       duration_ns AS ns, gap_ns, schedule_ns, gpu_ns, gpu_idle_ns, requests, prefill_requests, prefill_tokens,
       decode_tokens, output_tokens, draft_tokens, waiting, kv_used, kv_total, preempted, adapters
FROM iterations
WHERE {_RUN} AND {_TIME}
  AND (has({{processes:Array(String)}}, toString(process_id))
       OR role = 'worker' AND has({{hosts:Array(String)}}, toString(host)))
ORDER BY role, rank, process_id, begin LIMIT {{most:UInt32}}
"""
